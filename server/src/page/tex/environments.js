// Tables of formulas: matrices, cases, equations below one another.

import { Unreadable, fence, m, part, spaced } from './mathml.js';

const MATRICES = { matrix: '', smallmatrix: '', pmatrix: '()', bmatrix: '[]', Bmatrix: '{}', vmatrix: '||', Vmatrix: '‖‖', cases: '{', dcases: '{', rcases: ' }' };
/* Columns that stand right and left by turns, so that relations stand below one another. */
const ALIGNED = new Set(['align', 'aligned', 'alignat', 'alignedat', 'split', 'eqnarray', 'flalign']);
const ONE = new Set(['gather', 'gathered', 'equation', 'multline', 'math', 'displaymath', 'substack', 'subarray']);
const ENDS = new Set(['&', '\\\\', '\\cr', '\\newline', '\\end', '}']);
const SPECIFIED = new Set(['array', 'alignat', 'alignedat', 'subarray', 'darray']);
const MOST_COLUMNS = 64;

/* The environment that begins here, or one of that name that ends with a token. */
export function environment(parser, name = parser.raw().trim(), end = null) {
  const plain = name.replace(/\*$/, '');
  if (!(plain in MATRICES) && !ALIGNED.has(plain) && !ONE.has(plain) && !SPECIFIED.has(plain)) throw new Unreadable(`an unknown environment`);
  // [t], and [r] of matrix*, say how it stands.
  parser.match(/\s*\[[a-z]\]/y);
  const columns = SPECIFIED.has(plain) ? parser.raw() : '';
  const rows = parser.within(() => readRows(parser));
  if (end) parser.expect(end);
  else {
    parser.expect('\\end');
    if (parser.raw().trim() !== name) throw new Unreadable('another end');
  }
  const drawn = table(rows, plain, columns);
  const [left, right] = MATRICES[plain] ?? '';
  if (!left) return part(drawn);
  const side = (text, form) => text && text !== ' ' ? [fence(text, form)] : [];
  return part(m('mrow', null, ...side(left, 'prefix'), drawn, ...side(right, 'postfix')));
}
/* The parts of every cell of every row, up to what ends them all. */
export function readRows(parser) {
  const rows = [[]];
  for (;;) {
    let line = false;
    while (parser.match(/\s*\\(hline|toprule|midrule|bottomrule)(?![A-Za-z])/y)) line = true;
    if (line) rows.at(-1).line = true;
    rows.at(-1).push(parser.parts(ENDS));
    if (rows.at(-1).length > MOST_COLUMNS) throw new Unreadable('too many columns');
    if (parser.take('&')) continue;
    if (!['\\\\', '\\cr', '\\newline'].includes(parser.peek())) break;
    parser.next();
    parser.match(/\s*\*?\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]/y);
    rows.push([]);
  }
  // A table may end with an end of a row.
  const last = rows.at(-1);
  if (rows.length > 1 && last.length === 1 && last[0].length === 0) {
    rows.pop();
    if (last.line) rows.at(-1).lineBelow = true;
  }
  return rows;
}
/* 'l', 'c' or 'r' of each column, and before which of them a line stands. */
function specified(columns) {
  const sides = [], lines = new Set();
  for (const one of columns.replace(/@\{[^}]*\}|[pmb]\{[^}]*\}/g, found => found[0] === '@' ? '' : 'l').slice(0, 4 * MOST_COLUMNS)) {
    if (one === '|') lines.add(sides.length);
    else if ('lcr'.includes(one)) sides.push(one);
  }
  return { sides, lines };
}
/* Rows as an element, as the environment of that name has them. */
export function table(rows, name, columns = '') {
  const aligned = ALIGNED.has(name), cases = name.endsWith('cases'), { sides, lines } = specified(columns);
  const side = i => aligned ? (i % 2 ? 'l' : 'r') : cases ? 'l' : (sides[i] ?? 'c');
  const cell = (parts, i, one) => {
    // What stands after a relation's column begins is no beginning of a formula: a minus there is one between operands.
    const empty = aligned && i % 2 ? [m('mrow')] : [];
    const td = m('mtd', null, ...empty, ...spaced(parts));
    td.classList.add({ l: 'left', c: 'centre', r: 'right' }[side(i)]);
    if (lines.has(i)) td.classList.add('line-left');
    if (i === one.length - 1 && lines.has(i + 1)) td.classList.add('line-right');
    if (one.line) td.classList.add('line-above');
    if (one.lineBelow) td.classList.add('line-below');
    return td;
  };
  const node = m('mtable', { class: aligned ? 'aligned' : cases ? 'cases' : name === 'smallmatrix' || name === 'substack' ? 'small' : ONE.has(name) ? 'gathered' : 'matrix' },
    ...rows.map(one => m('mtr', null, ...one.map((parts, i) => cell(parts, i, one)))));
  if (aligned || ONE.has(name) && name !== 'substack' || name === 'dcases') node.setAttribute('displaystyle', 'true');
  return node;
}
