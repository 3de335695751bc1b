// A menu that opens beside its button.

import { $, el, icon } from './dom.js';

const menu = $('menu');
let owner = null;

function close(focus = true) {
  if (menu.hidden) return;
  menu.hidden = true;
  owner.setAttribute('aria-expanded', 'false');
  if (focus && owner.isConnected) owner.focus();
}
/* Opens it, or closes the one that is open there. `entries` are [icon, label, what it does], or { icon, label, act, checked } of which one is chosen. */
export function toggleMenu(button, entries) {
  const same = owner === button && !menu.hidden;
  close(false);
  if (same) return;
  owner = button;
  owner.setAttribute('aria-expanded', 'true');
  menu.replaceChildren(...entries.map(entry => Array.isArray(entry) ? { icon: entry[0], label: entry[1], act: entry[2] } : entry).map(({ icon: name, label, act, checked }) => {
    const more = checked === undefined ? { role: 'menuitem' } : { role: 'menuitemradio', 'aria-checked': String(checked) };
    return el('button', { type: 'button', tabIndex: -1, onclick: () => { close(); act(); }, ...more }, name ? icon(name) : el('i', { 'aria-hidden': 'true' }), label);
  }));
  menu.hidden = false;
  const { left, top, bottom } = button.getBoundingClientRect();
  menu.style.left = `${Math.min(left, innerWidth - menu.offsetWidth - 8)}px`;
  menu.style.top = `${bottom + menu.offsetHeight + 8 > innerHeight ? top - menu.offsetHeight - 4 : bottom + 4}px`;
  (menu.querySelector('[aria-checked=true]') ?? menu.firstChild).focus();
}
menu.addEventListener('keydown', event => {
  const all = [...menu.children], at = all.indexOf(document.activeElement);
  const to = { ArrowDown: (at + 1) % all.length, ArrowUp: (at + all.length - 1) % all.length, Home: 0, End: all.length - 1 }[event.key];
  if (to !== undefined) { event.preventDefault(); all[to].focus(); }
  if (event.key === 'Escape' || event.key === 'Tab') { event.preventDefault(); event.stopPropagation(); close(); }
});
addEventListener('pointerdown', event => { if (!menu.contains(event.target) && !owner?.contains(event.target)) close(false); });
addEventListener('resize', () => close(false));
