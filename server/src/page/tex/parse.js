// The mathematics of TeX, as far as models write it, to MathML. There are no macros, so work is linear in the source; depth and size are bounded.

import { command } from './commands.js';
import { readRows, table } from './environments.js';
import { Unreadable, delimiterPart, fraction, m, part, row, spaced } from './mathml.js';
import { ALPHABETS, DELIMITERS, inAlphabet } from './symbols.js';

/* Most characters, nested groups and elements of a formula: ten times what a page of a book has. */
const LENGTH = 20000, DEPTH = 50, ELEMENTS = 5000;

const TOKEN = /\s*(\\[A-Za-z]+|\\[^]|[^])/uy, NUMBER = /\s*(\d+(?:\.\d+)?|\.\d+)/y, WORD = /[A-Za-z]+/y;
const INFIX = { '\\over': {}, '\\atop': { linethickness: '0' }, '\\choose': { linethickness: '0', fences: '()' } };
/* That change the letters of the rest of a group, as in {\bf x}. */
const DECLARED = new Set(['\\bf', '\\rm', '\\it', '\\sf', '\\tt', '\\cal']);
const SCRIPTS = new Set(['^', '_', "'", '’', '\\limits', '\\nolimits']);
const SIGNS = new Map([['-', ['−', 'bin']], ['+', ['+', 'bin']], ['*', ['∗', 'bin']], ['=', ['=', 'rel']], ['<', ['<', 'rel']], ['>', ['>', 'rel']], [':', [':', 'rel']], [',', [',', 'punct']], [';', [';', 'punct']], ['/', ['/', 'ord']], ['|', ['|', 'ord']], ['!', ['!', 'close']], ['?', ['?', 'close']]]);

class Parser {
  constructor(source, depth = 0) {
    if (source.length > LENGTH) throw new Unreadable('too long');
    Object.assign(this, { source, at: 0, depth, elements: 0, alphabet: '' });
  }
  /* The next token, '' at the end. */
  peek() {
    TOKEN.lastIndex = this.at;
    return TOKEN.exec(this.source)?.[1] ?? '';
  }
  next() {
    TOKEN.lastIndex = this.at;
    const found = TOKEN.exec(this.source);
    if (!found) { this.at = this.source.length; return ''; }
    this.at = TOKEN.lastIndex;
    return found[1];
  }
  take(token) {
    if (this.peek() !== token) return false;
    this.next();
    return true;
  }
  expect(token) { if (!this.take(token)) throw new Unreadable(`no ${token}`); }
  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.source);
    if (found) this.at = pattern.lastIndex;
    return found;
  }
  /* Runs one level deeper. */
  within(read) {
    if (++this.depth > DEPTH) throw new Unreadable('too deep');
    const out = read();
    this.depth--;
    return out;
  }
  /* What `read` makes with letters of an alphabet. */
  inAlphabet(alphabet, read) {
    const outer = this.alphabet;
    this.alphabet = alphabet;
    const out = read();
    this.alphabet = outer;
    return out;
  }
  /* Parts up to a token that ends them, which is left. */
  parts(ends) {
    const out = [];
    for (let token; (token = this.peek()) !== '' && !ends.has(token);) {
      if (++this.elements > ELEMENTS) throw new Unreadable('too large');
      if (Object.hasOwn(INFIX, token)) {
        this.next();
        const over = out.splice(0), under = this.within(() => this.parts(ends));
        return [part(fraction(row(spaced(over)), row(spaced(under)), INFIX[token]))];
      }
      if (DECLARED.has(token)) {
        this.next();
        return [...out, ...this.inAlphabet(ALPHABETS.get(token.slice(1)), () => this.within(() => this.parts(ends)))];
      }
      const one = this.scripted();
      if (one) out.push(one);
    }
    return out;
  }
  /* A part with what stands above and below it. */
  scripted() {
    const base = SCRIPTS.has(this.peek()) ? part(m('mrow')) : this.part();
    if (!base) return null;
    let above = null, below = null, primes = 0, limits = base.limits;
    for (let token; SCRIPTS.has(token = this.peek());) {
      this.next();
      if (token === '^' && !above) above = this.argument();
      else if (token === '_' && !below) below = this.argument();
      else if (token === "'" || token === '’') primes++;
      else if (token === '\\limits') limits = true;
      else if (token === '\\nolimits') limits = false;
      else throw new Unreadable('two scripts');
    }
    if (primes) {
      const sign = m('mo', { lspace: '0', rspace: '0' }, primes < 4 ? ['′', '″', '‴'][primes - 1] : '′'.repeat(Math.min(primes, 9)));
      above = above ? m('mrow', null, sign, above) : sign;
    }
    if (!above && !below) return base;
    const tag = limits ? (above && below ? 'munderover' : above ? 'mover' : 'munder') : above && below ? 'msubsup' : above ? 'msup' : 'msub';
    return { ...base, node: m(tag, null, base.node, ...[below, above].filter(Boolean)) };
  }
  /* One part: a number, a letter, a sign, a group, or what a command makes. */
  part() {
    if (this.alphabet === '' || this.alphabet === 'rm' || this.alphabet === 'it') {
      const number = this.match(NUMBER);
      if (number) return part(m('mn', null, number[1]));
    }
    return this.single();
  }
  /* Likewise of a single token: what an argument without braces is. */
  single() {
    const token = this.next();
    if (token === '{') return this.within(() => this.group());
    if (['}', '&', '$', ''].includes(token)) throw new Unreadable(`a stray ${token || 'end'}`);
    if (token === '~') return part(m('mtext', null, '\u00a0'), 'space');
    if (token[0] === '\\' && token.length > 1) return command(this, token.slice(1), token);
    return this.character(token);
  }
  /* A group, or a single part, as one element. */
  argument() {
    if (this.peek() === '') throw new Unreadable('no argument');
    return this.within(() => this.single())?.node ?? m('mrow');
  }
  /* What stands in brackets, or null. */
  option() {
    if (!this.take('[')) return null;
    const parts = this.within(() => this.parts(new Set([']'])));
    this.expect(']');
    return row(spaced(parts));
  }
  /* The source of a group. */
  raw() {
    const single = this.next();
    if (single !== '{') return single;
    const start = this.at;
    for (let depth = 1; this.at < this.source.length; this.at++) {
      const character = this.source[this.at];
      if (character === '\\') this.at++;
      else if (character === '{') depth++;
      else if (character === '}' && --depth === 0) return this.source.slice(start, this.at++);
    }
    throw new Unreadable('no }');
  }
  /* The nodes of another source, one level deeper: of a formula within a text. */
  nested(source) { return this.within(() => whole(new Parser(source, this.depth))); }
  group() {
    const parts = this.parts(new Set(['}']));
    this.expect('}');
    // A group is one thing: a sign within is no sign of what stands beside it.
    return parts.length === 1 && parts[0].kind === 'ord' ? part(parts[0].node) : part(m('mrow', null, ...spaced(parts)));
  }
  character(token) {
    const sign = SIGNS.get(token);
    if (sign) return part(m('mo', token === '|' || token === '/' ? { stretchy: 'false', lspace: '0', rspace: '0' } : null, sign[0]), sign[1]);
    if (DELIMITERS.has(token) && token !== '.') return delimiterPart(DELIMITERS.get(token));
    if (/\d/.test(token)) return part(m('mn', null, inAlphabet(token, this.alphabet)));
    if (/[A-Za-z]/.test(token)) return this.letter(token);
    if (/\p{L}/u.test(token)) return /\p{Script=Latin}|\p{Script=Greek}/u.test(token) ? this.letter(token) : part(m('mtext', null, token));
    if (token === '.' || token === '"' || token === '@' || token === '`') return part(m('mi', { mathvariant: 'normal' }, token));
    return part(m('mo', null, token), /\p{Sm}/u.test(token) ? 'rel' : 'ord');
  }
  letter(token) {
    if (this.alphabet !== 'rm') return part(m('mi', null, this.alphabet === 'it' ? token : inAlphabet(token, this.alphabet)));
    // Upright letters that stand together are a word.
    WORD.lastIndex = this.at;
    const rest = /[A-Za-z]/.test(token) ? this.match(WORD)?.[0] ?? '' : '';
    return part(m('mi', { mathvariant: 'normal' }, token + rest));
  }
}

/* The nodes of a whole source. Lines that nobody put into an environment stand below one another. */
function whole(parser) {
  const rows = readRows(parser);
  if (parser.peek() !== '') throw new Unreadable('a stray end');
  return rows.length === 1 && rows[0].length === 1 ? spaced(rows[0][0]) : [table(rows, 'aligned')];
}
/* A formula as an element, or null where it cannot be read. */
export function formula(source, display) {
  try {
    const nodes = whole(new Parser(source));
    return nodes.length ? m('math', { display: display ? 'block' : 'inline', alttext: source.trim() }, ...nodes) : null;
  } catch (error) {
    if (error instanceof Unreadable) return null;
    throw error;
  }
}
