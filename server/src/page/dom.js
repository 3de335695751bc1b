// Elements of the page, and what is done with them everywhere.

export const $ = id => document.getElementById(id);

/* An element. Text is only ever set as text: nothing that a model or a user writes is parsed as HTML. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === 'class') node.className = value;
    else if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

const SVG = 'http://www.w3.org/2000/svg';
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg'), use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', '#i-' + name);
  svg.setAttribute('aria-hidden', 'true');
  svg.append(use);
  return svg;
}
export const setIcon = (holder, name) => holder.querySelector('use').setAttribute('href', '#i-' + name);
export const iconButton = (name, label, onclick) => el('button', { class: 'icon', type: 'button', title: label, 'aria-label': label, onclick }, icon(name));
export const plainButton = (label, onclick) => el('button', { class: 'plain', type: 'button', onclick }, label);

/* Makes a field as high as its text. */
export function grow(area) {
  area.style.height = 'auto';
  area.style.height = area.scrollHeight + 'px';
}

export async function copy(text, button) {
  try { await navigator.clipboard.writeText(text); }
  catch {
    // A page that came by plain HTTP from another machine has no clipboard.
    const area = el('textarea', { value: text });
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    button.focus();
  }
  setIcon(button, 'check');
  setTimeout(() => setIcon(button, 'copy'), 1400);
}

let toasting = 0;
/* Says something for a while, with a way to act on it. */
export function toast(text, action = 'OK', act = () => {}) {
  const [span, button] = $('toast').children;
  span.textContent = text;
  button.textContent = action;
  button.onclick = () => { $('toast').hidden = true; act(); };
  $('toast').hidden = false;
  clearTimeout(toasting);
  toasting = setTimeout(() => { $('toast').hidden = true; }, 7000);
}

/* Tells a screen reader. What was told before goes when something new begins. */
export function announce(text, begin = false) {
  if (begin) $('spoken').replaceChildren();
  $('spoken').append(el('p', {}, text));
}

/* One kind of number everywhere: 12,345. */
export const count = n => n.toLocaleString('en');
export const bytes = n => n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB` : n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`;
