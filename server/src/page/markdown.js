// Markdown: from blocks to nodes.

import { blocks } from './blocks.js';
import { copy, el, icon } from './dom.js';
import { highlight } from './highlight.js';
import { inline } from './inline.js';
import { formula } from './tex/parse.js';

const TASK = /^\[([ xX])\]\s+([^]*)$/;
function render(block, depth = 0) {
  const within = source => depth < 12 ? blocks(source).map(b => render(b, depth + 1)) : [source];
  switch (block.kind) {
    case 'head': return el('h' + block.level, {}, ...inline(block.text));
    case 'rule': return el('hr');
    case 'quote': return el('blockquote', {}, ...within(block.inner));
    case 'list': {
      const items = block.items.map(item => {
        const inner = blocks(item);
        const tight = inner.length > 0 && inner[0].kind === 'text';
        if (!tight) return el('li', {}, ...within(item));
        const [, done, text] = TASK.exec(inner[0].text) ?? [null, null, inner[0].text];
        const box = done ? el('input', { type: 'checkbox', disabled: true, checked: done !== ' ', 'aria-label': done === ' ' ? 'to do' : 'done' }) : null;
        return el('li', box ? { class: 'task' } : {}, box, ...inline(text), ...inner.slice(1).map(b => render(b, depth + 1)));
      });
      if (!block.ordered) return el('ul', items.length && items.every(item => item.className === 'task') ? { class: 'tasks' } : {}, ...items);
      const list = el('ol', { start: block.first }, ...items);
      list.style.setProperty('--digits', String(block.first + items.length - 1).length);
      return list;
    }
    case 'table': {
      const cell = (tag, text, i) => { const node = el(tag, {}, ...inline(text ?? '')); node.style.textAlign = block.align[i] || ''; return node; };
      const head = el('tr', {}, ...block.head.map((text, i) => cell('th', text, i)));
      const rows = block.rows.map(row => el('tr', {}, ...block.head.map((_, i) => cell('td', row[i], i))));
      return el('div', { class: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Table' }, el('table', {}, el('thead', {}, head), el('tbody', {}, ...rows)));
    }
    case 'formula': {
      const node = block.tex === null ? null : formula(block.tex, true);
      return node ? el('div', { class: 'formula' }, node, block.after || null) : el('p', {}, el('code', { class: 'apart' }, block.text));
    }
    case 'details': {
      const open = block.open || !!block.unfinished;
      return el('details', { open }, el('summary', {}, icon('next'), el('span', {}, ...inline(block.summary || 'Details'))), el('div', {}, ...within(block.inner)));
    }
    case 'text': return el('p', {}, ...inline(block.text));
    default: {
      const button = el('button', { type: 'button', onclick: () => copy(block.code, button) }, icon('copy'), 'Copy');
      return el('div', { class: 'block' }, el('div', {}, el('span', {}, block.language || 'text'), button), el('pre', { tabIndex: 0 }, el('code', {}, ...highlight(block.code, block.language))));
    }
  }
}
/* Brings a node up to date. Blocks that have not changed stay, so a long answer is not drawn anew for every word. */
export function markdown(node, source) {
  const now = blocks(source), before = node.blocks ?? [];
  let same = 0;
  while (same < now.length && same < before.length && now[same].key === before[same]) same++;
  // What was folded or unfolded by hand stays so while its text grows.
  const replaced = [...node.children].slice(same).map(child => child.open);
  while (node.childNodes.length > same) node.lastChild.remove();
  node.append(...now.slice(same).map(b => render(b)));
  replaced.forEach((open, at) => { const child = node.children[same + at]; if (open !== undefined && child?.tagName === 'DETAILS') child.open = open; });
  node.blocks = now.map(b => b.key);
}

