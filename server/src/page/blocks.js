// Markdown: from a source to its blocks.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/, ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/, RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
// Of numbered items only the first may stand right under a text: a line of prose may begin with a year.
const CUTS = /^\s*([-*+]|1[.)])\s+\S/;
const HEAD = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/, QUOTE = /^ {0,3}> ?(.*)$/, BAR = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const cells = row => row.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map(c => c.trim().replace(/\\\|/g, '|'));
const isTable = (line, next) => line.includes('|') && !!next?.includes('-') && BAR.test(next) && cells(line).length === cells(next).length;
const SET_APART = [
  [/^\s*\\\[/, /\\\]([.,;]?)\s*$/, ''], [/^\s*\$\$/, /\$\$([.,;]?)\s*$/, ''],
  ...['align', 'equation', 'gather', 'multline', 'alignat', 'eqnarray', 'flalign'].map(name => [new RegExp(`^\\s*\\\\begin\\{${name}\\*?\\}`), new RegExp(`\\\\end\\{${name}\\*?\\}([.,;]?)\\s*$`), name]),
];
/* What `<details>` may begin with: names and values that mean nothing here but for `open`. */
const DETAILS = /^ {0,3}<details((?:\s+[\w-]+(?:="[^"<>]*")?)*)\s*>/i, SUMMARY = /^\s*<summary>([^]*?)<\/summary>/i;
/* The folded part that begins in line i, { open, summary, inner, after, last }: it ends where as many have ended as have begun, or with the text. Code is no tag. */
function details(lines, i) {
  const [begin, attributes] = DETAILS.exec(lines[i]), found = [];
  const part = (last, after) => {
    const source = found.join('\n'), [summary, title] = SUMMARY.exec(source) ?? ['', ''];
    return { open: /\sopen\b/i.test(attributes), summary: title.trim(), inner: source.slice(summary.length), after, last };
  };
  for (let n = i, deep = 1, fence = null; n < lines.length; n++) {
    const line = n === i ? lines[n].slice(begin.length) : lines[n];
    if (fence ? fence.test(line) : FENCE.test(line)) fence = fence ? null : closing(FENCE.exec(line)[1]);
    else if (!fence) for (const tag of line.matchAll(/<(\/?)details(?=[\s>])[^<>]*>/gi)) {
      deep += tag[1] ? -1 : 1;
      if (deep) continue;
      found.push(line.slice(0, tag.index));
      return part(n, line.slice(tag.index + tag[0].length));
    }
    found.push(line);
  }
  return { ...part(lines.length - 1, ''), unfinished: true };
}
const closing = fence => new RegExp('^ {0,3}' + (fence[0] === '`' ? '`' : '~') + '{' + fence.length + ',}\\s*$');
/* Most lines of a formula. */
const MOST_LINES = 200;
/* The formula that is set apart from line i on, \[…\], $$…$$ or an environment: { lines, tex, after }; null if there is none. One that the text
   ends in has no `tex` yet. Two dollars alone may mean anything. */
function formula(lines, i) {
  const [begin, end, environment] = SET_APART.find(([begin]) => begin.test(lines[i])) ?? [];
  if (!begin) return null;
  let n = 0;
  for (; n < MOST_LINES && lines[i + n]?.trim(); n++) {
    const closing = end.exec(n ? lines[i + n] : lines[i].replace(begin, ''));
    if (!closing) continue;
    const source = lines.slice(i, i + n + 1).join('\n');
    return { lines: n + 1, after: closing[1], tex: environment ? source.trim().slice(0, source.trim().length - closing[1].length) : source.replace(begin, '').replace(end, '') };
  }
  return i + n === lines.length && !lines[i].includes('$') ? { lines: n, tex: null } : null;
}

/* [{ kind, key, … }]; the key is the same where the block is. */
export function blocks(source) {
  const lines = source.replace(/\r\n?/g, '\n').split('\n'), out = [];
  for (let i = 0; i < lines.length;) {
    const line = lines[i], start = i;
    const push = (kind, more) => out.push({ kind, key: kind + lines.slice(start, i).join('\n'), ...more });
    let m;
    if (!line.trim()) { i++; continue; }
    if ((m = FENCE.exec(line))) {
      const close = closing(m[1]), code = [];
      for (i++; i < lines.length && !close.test(lines[i]); i++) code.push(lines[i]);
      const closed = i < lines.length;
      if (closed) i++;
      push('code' + closed, { code: code.join('\n'), language: m[2].trim().split(/\s+/)[0] });
    } else if ((m = HEAD.exec(line))) { i++; push('head', { level: m[1].length, text: m[2] }); }
    else if (RULE.test(line)) { i++; push('rule'); }
    else if (QUOTE.test(line)) {
      const inner = [];
      for (; i < lines.length && lines[i].trim() && ((m = QUOTE.exec(lines[i])) || inner.length); i++) inner.push(m ? m[1] : lines[i]);
      push('quote', { inner: inner.join('\n') });
    } else if (DETAILS.test(line)) {
      const { last, after, ...part } = details(lines, i);
      i = last + 1;
      push('details', part);
      // What stands behind its end is read on.
      if (after.trim()) lines[--i] = after;
    } else if ((m = formula(lines, i))) {
      i += m.lines;
      push('formula', { tex: m.tex, after: m.after, text: lines.slice(start, i).join('\n') });
    } else if (isTable(line, lines[i + 1])) {
      const head = cells(line), align = cells(lines[i + 1]).map(c => c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : ''), rows = [];
      for (i += 2; i < lines.length && lines[i].includes('|') && lines[i].trim(); i++) rows.push(cells(lines[i]));
      push('table', { head, align, rows });
    } else if (ITEM.test(line)) {
      const items = [], ordered = /\d/.test(ITEM.exec(line)[2]), base = ITEM.exec(line)[1].length, first = parseInt(ITEM.exec(line)[2], 10);
      for (; i < lines.length; i++) {
        m = ITEM.exec(lines[i]);
        if (m && m[1].length <= base + 1) {
          if (/\d/.test(m[2]) !== ordered && m[1].length <= base) break;
          items.push([m[3]]);
        } else if (!lines[i].trim()) {
          const next = lines.slice(i + 1).find(l => l.trim());
          if (next === undefined || !(/^\s{2,}/.test(next) || ITEM.test(next))) break;
          items.at(-1).push('');
        } else if (/^\s/.test(lines[i]) || lines[i - 1].trim()) {
          if (!/^\s/.test(lines[i]) && (FENCE.test(lines[i]) || HEAD.test(lines[i]) || RULE.test(lines[i]))) break;
          items.at(-1).push(lines[i].replace(new RegExp('^\\s{0,' + (base + (ordered ? 3 : 2)) + '}'), ''));
        } else break;
      }
      push('list', { ordered, first, items: items.map(item => item.join('\n')) });
    } else {
      const text = [];
      const cut = () => [FENCE, HEAD, QUOTE, RULE, CUTS, DETAILS].some(begin => begin.test(lines[i])) || isTable(lines[i], lines[i + 1]) || formula(lines, i);
      for (; i < lines.length && lines[i].trim() && !(i > start && cut()); i++) text.push(lines[i]);
      push('text', { text: text.join('\n') });
    }
  }
  return out;
}

