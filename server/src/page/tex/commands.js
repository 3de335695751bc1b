// What TeX's commands make. A parser is given to read their arguments from; what is unknown is shown by its name.

import { environment } from './environments.js';
import { Unreadable, delimiterPart, fence, fraction, m, mspace, part, row, spaced } from './mathml.js';
import { ACCENTS, ALPHABETS, ARROWS, BINARY, BRACES, DELIMITERS, FUNCTIONS, INTEGRALS, LARGE, LETTERS, LIMITS, NOTHING, RELATIONS, SPACES, UPRIGHT, WIDE, inAlphabet } from './symbols.js';

const styled = (display, node) => m('mstyle', { displaystyle: display ? 'true' : 'false', scriptlevel: '0' }, node);

/* Text: spaces count, and $…$ is a formula again. */
function text(parser, className) {
  const source = parser.raw(), out = [];
  source.split(/(?<!\\)\$/).forEach((piece, i) => {
    if (!piece) return;
    if (i % 2) out.push(row(parser.nested(piece)));
    else {
      const plain = piece.replace(/\\([%_&${}#])/g, '$1').replace(/\\ |~/g, '\u00a0').replace(/^\s+|\s+$/g, '\u00a0');
      out.push(m('mtext', className ? { class: className } : null, plain.replace(/\\text[a-z]{2}\{([^{}]*)\}/g, '$1').replace(/[{}]/g, '')));
    }
  });
  return part(row(out));
}
function operatorName(parser) {
  const limits = parser.take('*');
  return named(parser.raw().replace(/\\[,;: ]/g, '\u2009').replace(/\\[A-Za-z]+\s*|[{}]/g, ''), limits);
}
const named = (name, limits) => limits ? part(m('mo', { lspace: '0', rspace: '0', movablelimits: 'true' }, name), 'fn', { limits: true }) : part(m('mi', null, name), 'fn');

function delimiter(parser) {
  const token = parser.next();
  if (!DELIMITERS.has(token)) throw new Unreadable(`no delimiter: ${token}`);
  return token === '.' ? '' : DELIMITERS.get(token);
}
function leftRight(parser) {
  const nodes = [], put = (text, form) => { if (text) nodes.push(fence(text, form)); };
  put(delimiter(parser), 'prefix');
  for (;;) {
    nodes.push(...spaced(parser.within(() => parser.parts(new Set(['\\right', '\\middle', '}', '&', '\\\\', '\\end'])))));
    const end = parser.next();
    if (end === '\\right') break;
    if (end !== '\\middle') throw new Unreadable('no \\right');
    nodes.push(m('mo', { fence: 'true', stretchy: 'true', form: 'infix', lspace: '.17em', rspace: '.17em' }, delimiter(parser)));
  }
  put(delimiter(parser), 'postfix');
  return part(m('mrow', null, ...nodes), 'inner');
}
const SIZES = { big: 1.2, Big: 1.8, bigg: 2.4, Bigg: 3 };
function sized(parser, [, name, side]) {
  const text = delimiter(parser), kind = { l: 'open', r: 'close', m: 'rel' }[side];
  const one = delimiterPart(text, kind);
  const size = `${SIZES[name]}em`;
  for (const [key, value] of Object.entries({ stretchy: 'true', symmetric: 'true', fence: 'true', minsize: size, maxsize: size })) one.node.setAttribute(key, value);
  return one;
}
function accent(parser, name) {
  const base = parser.argument(), wide = WIDE.has(name);
  return part(m('mover', { accent: 'true' }, base, m('mo', { stretchy: wide ? 'true' : 'false' }, ACCENTS.get(name))));
}
function brace(parser, name) {
  const base = parser.argument(), mark = m('mo', { stretchy: 'true' }, BRACES.get(name));
  return part(m(name.startsWith('over') ? 'mover' : 'munder', null, base, mark), 'ord', { limits: true });
}
function arrow(parser, name) {
  const below = parser.option(), above = parser.argument();
  const sign = m('mo', { stretchy: 'true' }, ARROWS.get(name));
  const padded = node => m('mrow', null, mspace(.5), node, mspace(.6));
  return part(below ? m('munderover', null, sign, padded(below), padded(above)) : m('mover', null, sign, padded(above)), 'rel');
}
function negated(parser) {
  const one = parser.within(() => parser.single());
  if (!one) throw new Unreadable('nothing to negate');
  const last = one.node.lastChild;
  if (last?.nodeType === Node.TEXT_NODE) last.data = (last.data + '\u0338').normalize('NFC');
  return part(one.node, 'rel');
}
function root(parser) {
  const index = parser.option(), base = parser.argument();
  return part(index ? m('mroot', null, base, index) : m('msqrt', null, base));
}
/* A length in em, bounded: a formula does not leave its line. */
function length(parser) {
  const [, number, unit] = /^\s*(-?[\d.]+)\s*(em|ex|pt|mu|cm|mm|px)\s*$/.exec(parser.raw()) ?? [];
  const em = Number(number) * { em: 1, ex: .43, pt: .1, mu: 1 / 18, cm: 2.8, mm: .28, px: .06 }[unit];
  return Number.isFinite(em) ? Math.min(8, Math.max(-1, em)) : 0;
}
const relatedTo = (tag, parser) => { const mark = parser.argument(), base = parser.argument(); return part(m(tag, null, base, mark), 'rel'); };
const kind = name => parser => part(parser.argument(), name);
const marked = name => parser => part(m('mrow', { class: name }, parser.argument()));
const modulo = parser => { const by = parser.argument(); return [mspace(1), m('mo', { stretchy: 'false', form: 'prefix' }, '('), m('mi', null, 'mod'), mspace(.3333), by, m('mo', { stretchy: 'false', form: 'postfix' }, ')')]; };
const binomial = parser => fraction(parser.argument(), parser.argument(), { linethickness: '0', fences: '()' });

const COMMANDS = {
  frac: parser => part(fraction(parser.argument(), parser.argument())),
  dfrac: parser => part(styled(true, fraction(parser.argument(), parser.argument()))),
  cfrac: parser => part(styled(true, fraction(parser.argument(), parser.argument()))),
  tfrac: parser => part(m('mstyle', { displaystyle: 'false' }, fraction(parser.argument(), parser.argument()))),
  binom: parser => part(binomial(parser)), tbinom: parser => part(binomial(parser)), dbinom: parser => part(styled(true, binomial(parser))),
  sqrt: root, left: leftRight, begin: environment, not: negated, operatorname: operatorName,
  overset: parser => relatedTo('mover', parser), stackrel: parser => relatedTo('mover', parser), underset: parser => relatedTo('munder', parser),
  overline: marked('over'), underline: marked('under'), boxed: marked('boxed'), fbox: marked('boxed'), cancel: marked('cancelled'), bcancel: marked('cancelled'), xcancel: marked('cancelled'), sout: marked('cancelled'),
  mathop: parser => part(parser.argument(), 'large', { limits: true }), mathrel: kind('rel'), mathbin: kind('bin'), mathord: kind('ord'), mathopen: kind('open'), mathclose: kind('close'), mathpunct: kind('punct'), mathinner: kind('ord'),
  phantom: parser => part(m('mphantom', null, parser.argument())), hphantom: parser => part(m('mphantom', null, parser.argument())),
  vphantom: parser => part(m('mpadded', { width: '0' }, m('mphantom', null, parser.argument()))), smash: parser => part(parser.argument()),
  bmod: () => part(m('mo', { lspace: '.2222em', rspace: '.2222em' }, 'mod'), 'space'), mod: parser => part(m('mrow', null, mspace(1), m('mi', null, 'mod'), mspace(.3333), parser.argument())),
  pmod: parser => part(m('mrow', null, ...modulo(parser)), 'space'), pod: parser => part(m('mrow', null, mspace(1), delimiterPart('(').node, parser.argument(), delimiterPart(')').node)),
  tag: parser => { const starred = parser.take('*'), number = text(parser).node; return part(m('mrow', { class: 'tag' }, mspace(2), ...(starred ? [number] : [m('mtext', null, '('), number, m('mtext', null, ')')])), 'space'); },
  label: parser => { parser.raw(); return null; }, color: parser => { parser.raw(); return null; },
  textcolor: parser => { parser.raw(); return part(parser.argument()); }, colorbox: parser => { parser.raw(); return text(parser); }, href: parser => { parser.raw(); return part(parser.argument()); },
  hspace: parser => { parser.take('*'); return part(mspace(length(parser)), 'space'); },
  substack: parser => environmentOf(parser, 'substack'),
  displaystyle: () => part(m('mstyle', { displaystyle: 'true', scriptlevel: '0' }), 'space', { styled: true }), textstyle: () => part(m('mstyle', { displaystyle: 'false', scriptlevel: '0' }), 'space', { styled: true }),
  scriptstyle: () => part(m('mstyle', { displaystyle: 'false', scriptlevel: '1' }), 'space', { styled: true }), scriptscriptstyle: () => part(m('mstyle', { displaystyle: 'false', scriptlevel: '2' }), 'space', { styled: true }),
  text, mbox: text, textrm: text, textnormal: text, textup: text, hbox: text, textsf: text, textmd: text,
  textbf: parser => text(parser, 'bold'), textit: parser => text(parser, 'italic'), emph: parser => text(parser, 'italic'), texttt: parser => text(parser, 'fixed'),
};
function environmentOf(parser, name) {
  parser.expect('{');
  return environment(parser, name, '}');
}

/* The part that a command makes; null for one that makes none. */
export function command(parser, name, token) {
  if (Object.hasOwn(COMMANDS, name)) return COMMANDS[name](parser);
  if (ALPHABETS.has(name)) return part(parser.inAlphabet(ALPHABETS.get(name), () => parser.argument()));
  if (LETTERS.has(name)) return part(m('mi', null, inAlphabet(LETTERS.get(name), parser.alphabet)));
  if (UPRIGHT.has(name)) return part(m('mi', { mathvariant: 'normal' }, inAlphabet(UPRIGHT.get(name), parser.alphabet)));
  if (BINARY.has(name)) return part(m('mo', null, BINARY.get(name)), 'bin');
  if (LARGE.has(name)) return part(m('mo', null, LARGE.get(name)), 'large', { limits: true });
  if (INTEGRALS.has(name)) return part(m('mo', null, INTEGRALS.get(name)), 'large');
  if (FUNCTIONS.has(name)) return named(name, false);
  if (LIMITS.has(name)) return named(LIMITS.get(name), true);
  if (SPACES.has(name)) return part(mspace(SPACES.get(name)), 'space');
  if (ACCENTS.has(name)) return accent(parser, name);
  if (BRACES.has(name)) return brace(parser, name);
  if (ARROWS.has(name)) return arrow(parser, name);
  const size = /^(bigg?|Bigg?)([lrm]?)$/.exec(name);
  if (size) return sized(parser, size);
  if (DELIMITERS.has(token)) return delimiterPart(DELIMITERS.get(token), { l: 'open', r: 'close' }[/^([lr])vert$/i.exec(name)?.[1]]);
  if (RELATIONS.has(name)) return part(m('mo', RELATIONS.get(name) === '∣' ? null : { stretchy: 'false' }, RELATIONS.get(name)), 'rel');
  if (NOTHING.has(name)) return null;
  if (['right', 'middle', 'end', 'over', '\\', 'cr', 'newline'].includes(name)) throw new Unreadable(`a stray \\${name}`);
  return part(m('mtext', { class: 'unknown' }, token));
}
