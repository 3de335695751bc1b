// Colours for code: comments, strings, numbers, and words that most languages keep for themselves.

import { el } from './dom.js';

const KEYWORDS = new Set(('abstract and as assert async await begin bool boolean break case catch char class const continue def default defer del do double elif else end enum except export extends false False final finally float fn for foreach from func function global go if impl implements import in include instanceof int interface is lambda let local long loop match mod move mut namespace new nil None nonlocal not null or package pass private protected pub public raise ref return select self Self short signed sizeof static str string struct super switch then this throw trait true True try type typedef typeof u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 usize undefined union unless unsafe unsigned until use using val var virtual void where while with yield echo fi done esac SELECT FROM WHERE INSERT UPDATE DELETE JOIN CREATE TABLE').split(' '));
const HASH = /^(py|python|sh|bash|shell|zsh|console|yaml|yml|toml|ruby|rb|r|perl|make|makefile|dockerfile|conf|ini)$/i;
// An apostrophe there holds one character, or begins a lifetime or the like.
const LETTER = /^(rust|rs|c|h|cpp|c\+\+|cc|hpp|cs|csharp|java|kotlin|scala|go|swift|zig|haskell|hs|ocaml|ml)$/i;
/* Most characters that are coloured: more take longer than a frame. */
const MOST = 40000;
/* The nodes of a text. */
export function highlight(code, language) {
  if (/^(text|txt|plain|plaintext|markdown|md|diff)?$/i.test(language) || code.length > MOST) return [code];
  const comment = HASH.test(language) ? '#[^\\n]*' : '\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)' + (/^(sql|lua|haskell|hs)$/i.test(language) ? '|--[^\\n]*' : '');
  const single = LETTER.test(language) ? "'(?:\\\\.[^'\\n]{0,10}|[^'\\\\\\n])'" : "'(?:\\\\.|[^'\\\\\\n])*'";
  const tokens = new RegExp(`(${comment})|("""[\\s\\S]*?(?:"""|$)|"(?:\\\\.|[^"\\\\\\n])*"?|${single}|\`(?:\\\\.|[^\`\\\\])*\`)|(\\b\\d[\\w.]*\\b)|([A-Za-z_]\\w*)`, 'g');
  const out = [];
  let at = 0;
  for (const m of code.matchAll(tokens)) {
    const kind = m[1] ? 'c' : m[2] ? 's' : m[3] ? 'n' : KEYWORDS.has(m[4]) ? 'k' : '';
    if (!kind) continue;
    if (m.index > at) out.push(code.slice(at, m.index));
    out.push(el('span', { class: kind }, m[0]));
    at = m.index + m[0].length;
  }
  out.push(code.slice(at));
  return out;
}
