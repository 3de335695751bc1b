// Markdown within a block: from a text to nodes.

import { el } from './dom.js';
import { ENTITY, decoded, entity } from './entities.js';
import { formula } from './tex/parse.js';

// Lengths are bounded: a search for what closes a mark must not take for ever where nothing does.
const INLINE = new RegExp([
  /(?<ticks>`{1,9})(?<code>[\s\S]{0,1500}?[^`])\k<ticks>(?!`)/,
  /\\\((?<tex>[\s\S]{1,1500}?)\\\)|\\\[(?<apart>[\s\S]{1,1500}?)\\\]|\$\$(?<apart_>[^$]{1,1500})\$\$/,
  // A price is no formula: no space stands within the signs, and no letter or digit after them.
  /(?<![\\$\w])\$(?=[^\s$])(?<dollars>(?:\\[\s\S]|[^$\\]){0,1500}?(?:\\[\s\S]|[^\s$\\]))\$(?![\w$])/,
  /\*{3}(?=[^\s*])(?<both>[\s\S]{0,1500}?[^\s*])\*{3}(?!\*)|\*\*(?=\S)(?<strong>[\s\S]{0,1500}?\S)\*\*(?!\*)|__(?=\S)(?<strong_>[\s\S]{0,1500}?\S)__(?!\w)/,
  /\*(?=[^\s*])(?<em>[^*]{0,1500}?[^\s*])\*|(?<!\w)_(?=[^\s_])(?<em_>[^_]{0,1500}?[^\s_])_(?!\w)|~~(?=\S)(?<s>[\s\S]{0,1500}?\S)~~/,
  /!?\[(?<label>[^\]\n]{0,500})\]\(\s*(?:<(?<pointed>[^\s<>]{1,2000})>|(?<target>(?:[^\s<>()]|\([^\s<>()]{0,500}\)){1,2000}))(?:\s+"[^"]{0,500}")?\s*\)/,
  /(?<bare>https?:\/\/(?:[^\s<>()"'`]|\([^\s<>()"'`]{0,500}\))+(?<![.,;:!?]))/,
  // The only tags that are tags, and bare: all others are text.
  /<(?<tag>[sS][uU][bBpP])>(?<inner>[\s\S]{1,1500}?)<\/\k<tag>>|(?<br><[bB][rR]\s{0,9}\/?>)/,
  RegExp(`(?<entity>${ENTITY.source})`),
  /\\(?<escaped>[\\`*_{}[\]()#+.!|~<>$&-])|(?<end>( {2,}|\\)\n)/,
].map(part => part.source).join('|'), 'g');
/* The nodes of a text. */
export function inline(text, depth = 0) {
  const out = [];
  let at = 0;
  const deeper = (tag, inner) => el(tag, {}, ...(depth < 8 ? inline(inner, depth + 1) : [inner]));
  for (const m of text.matchAll(INLINE)) {
    if (m.index > at) out.push(text.slice(at, m.index));
    at = m.index + m[0].length;
    const g = m.groups, target = g.pointed ?? g.target;
    if (g.code) out.push(el('code', {}, g.code.replace(/\n/g, ' ').replace(/^ (.+) $/, '$1')));
    else if (g.tex ?? g.dollars) out.push(formula(g.tex ?? g.dollars, false) ?? el('code', {}, m[0]));
    else if (g.apart ?? g.apart_) out.push(formula(g.apart ?? g.apart_, true) ?? el('code', {}, m[0]));
    else if (g.both) out.push(el('em', {}, deeper('strong', g.both)));
    else if (g.strong ?? g.strong_) out.push(deeper('strong', g.strong ?? g.strong_));
    else if (g.em ?? g.em_) out.push(deeper('em', g.em ?? g.em_));
    else if (g.s) out.push(deeper('s', g.s));
    else if (g.inner) out.push(deeper(g.tag.toLowerCase(), g.inner));
    else if (g.entity) out.push(entity(g.entity));
    else if (target) out.push(link(decoded(target), depth < 8 ? inline(g.label || target, 9) : [g.label]));
    else if (g.bare) out.push(link(decoded(g.bare), [decoded(g.bare)]));
    else if (g.escaped) out.push(g.escaped);
    else out.push(el('br'));
  }
  if (at < text.length) out.push(text.slice(at));
  return out;
}
function link(target, children) {
  // What is no web or mail address is no link: it could be a script.
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return el('span', {}, ...children);
  return el('a', { href: target, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children);
}
