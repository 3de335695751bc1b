// Elements of MathML Core, and the parts of a formula before they are put in a row.

import { CLOSING, OPENING } from './symbols.js';

/* A source that is no formula; it is shown as it is. */
export class Unreadable extends Error {}

const MATHML = 'http://www.w3.org/1998/Math/MathML';

export function m(tag, attributes, ...children) {
  const node = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/* A part: its element and what it is to its neighbours: 'ord', 'bin', 'rel', 'open', 'close', 'punct', 'inner', 'large', 'fn', 'space'. `limits`: scripts
   stand above and below it. `styled`: what follows in the row goes into it. */
export const part = (node, kind = 'ord', more = {}) => ({ node, kind, ...more });

export const mspace = em => m('mspace', { width: `${em}em` });
export const row = nodes => nodes.length === 1 ? nodes[0] : m('mrow', null, ...nodes);
export const fence = (text, form) => m('mo', { form, fence: 'true', stretchy: 'true' }, text);

/* Signs after which a plus or a minus belongs to what follows. */
const BEFORE_SIGN = new Set(['bin', 'rel', 'open', 'punct', 'large', 'fn']);
/* What a function's name touches. */
const TOUCHES = new Set(['open', 'close', 'punct', 'inner', 'rel', 'bin', 'space']);

/* Parts as the nodes of a row, spaced as TeX does where MathML would not. */
export function spaced(parts) {
  const out = [];
  let into = out, before = null;
  for (const one of parts) {
    const after = before?.kind;
    if (one.kind === 'bin' && (!before || BEFORE_SIGN.has(after)) && one.node.localName === 'mo') one.node.setAttribute('form', 'prefix');
    if (after === 'fn' && !TOUCHES.has(one.kind) || one.kind === 'fn' && ['ord', 'close'].includes(after)) into.push(mspace(.1667));
    into.push(one.node);
    if (one.styled) { into = []; one.rest = into; }
    if (one.kind !== 'space') before = one;
  }
  for (const one of parts) if (one.styled) one.node.append(...one.rest);
  return out;
}

export function delimiterPart(text, kind = OPENING.has(text) ? 'open' : CLOSING.has(text) ? 'close' : 'ord') {
  const form = { open: 'prefix', close: 'postfix' }[kind];
  // A bar that neither opens nor closes stands close to what is on both sides.
  return part(m('mo', { ...(form ? { form } : { lspace: '0', rspace: '0' }), stretchy: 'false' }, text), kind);
}
export function fraction(over, under, { linethickness, fences } = {}) {
  const node = m('mfrac', linethickness ? { linethickness } : null, over, under);
  return fences ? m('mrow', null, fence(fences[0], 'prefix'), node, fence(fences[1], 'postfix')) : node;
}
