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
/* Opens it, or closes the one that is open there. `entries` are [icon, label, what it does]. */
export function toggleMenu(button, entries) {
  const same = owner === button && !menu.hidden;
  close(false);
  if (same) return;
  owner = button;
  owner.setAttribute('aria-expanded', 'true');
  menu.replaceChildren(...entries.map(([name, label, act]) => el('button', { type: 'button', role: 'menuitem', tabIndex: -1, onclick: () => { close(); act(); } }, icon(name), label)));
  menu.hidden = false;
  const { left, top, bottom } = button.getBoundingClientRect();
  menu.style.left = `${Math.min(left, innerWidth - menu.offsetWidth - 8)}px`;
  menu.style.top = `${bottom + menu.offsetHeight + 8 > innerHeight ? top - menu.offsetHeight - 4 : bottom + 4}px`;
  menu.firstChild.focus();
}
menu.addEventListener('keydown', event => {
  const all = [...menu.children], at = all.indexOf(document.activeElement);
  const to = { ArrowDown: (at + 1) % all.length, ArrowUp: (at + all.length - 1) % all.length, Home: 0, End: all.length - 1 }[event.key];
  if (to !== undefined) { event.preventDefault(); all[to].focus(); }
  if (event.key === 'Escape' || event.key === 'Tab') { event.preventDefault(); event.stopPropagation(); close(); }
});
addEventListener('pointerdown', event => { if (!menu.contains(event.target) && !owner?.contains(event.target)) close(false); });
addEventListener('resize', () => close(false));
