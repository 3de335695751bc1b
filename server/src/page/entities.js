// Character references of HTML: what models write. Trusted Types leave no parser of HTML to ask, so the names are listed.

const GREEK = 'alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigmaf sigma tau upsilon phi chi psi omega';
const NAMES = new Map(Object.entries({
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', ensp: '\u2002', emsp: '\u2003', thinsp: '\u2009', shy: '\u00ad', zwj: '\u200d', zwnj: '\u200c',
  ndash: '–', mdash: '—', lsquo: '‘', rsquo: '’', sbquo: '‚', ldquo: '“', rdquo: '”', bdquo: '„', laquo: '«', raquo: '»', lsaquo: '‹', rsaquo: '›',
  hellip: '…', bull: '•', middot: '·', prime: '′', Prime: '″', dagger: '†', Dagger: '‡', permil: '‰', iexcl: '¡', iquest: '¿', sect: '§', para: '¶', num: '#', ast: '*', lowbar: '_',
  copy: '©', reg: '®', trade: '™', deg: '°', micro: 'µ', ordm: 'º', ordf: 'ª', cent: '¢', pound: '£', yen: '¥', euro: '€', curren: '¤', brvbar: '¦', not: '¬', macr: '¯', acute: '´', cedil: '¸', uml: '¨', vert: '|', verbar: '|', bsol: '\\', grave: '`', lbrace: '{', rbrace: '}', lsqb: '[', rsqb: ']', dollar: '$',
  plusmn: '±', times: '×', divide: '÷', frac12: '½', frac14: '¼', frac34: '¾', sup1: '¹', sup2: '²', sup3: '³', minus: '−', radic: '√', infin: '∞', asymp: '≈', ne: '≠', equiv: '≡', le: '≤', ge: '≥', sum: '∑', prod: '∏', int: '∫', part: '∂', nabla: '∇', prop: '∝', ang: '∠', perp: '⊥', sdot: '⋅', oplus: '⊕', otimes: '⊗',
  forall: '∀', exist: '∃', empty: '∅', isin: '∈', notin: '∉', ni: '∋', and: '∧', or: '∨', cap: '∩', cup: '∪', sub: '⊂', sup: '⊃', sube: '⊆', supe: '⊇', there4: '∴', sim: '∼', cong: '≅',
  larr: '←', uarr: '↑', rarr: '→', darr: '↓', harr: '↔', lArr: '⇐', uArr: '⇑', rArr: '⇒', dArr: '⇓', hArr: '⇔', crarr: '↵', lceil: '⌈', rceil: '⌉', lfloor: '⌊', rfloor: '⌋', loz: '◊', check: '✓', cross: '✗', star: '☆', starf: '★', spades: '♠', clubs: '♣', hearts: '♥', diams: '♦',
  OElig: 'Œ', oelig: 'œ', Scaron: 'Š', scaron: 'š', Yuml: 'Ÿ', fnof: 'ƒ', circ: 'ˆ', tilde: '˜', ETH: 'Ð', eth: 'ð', THORN: 'Þ', thorn: 'þ', szlig: 'ß', AElig: 'Æ', aelig: 'æ', Aring: 'Å', aring: 'å', Oslash: 'Ø', oslash: 'ø',
}));
GREEK.split(' ').forEach((name, at) => {
  NAMES.set(name, String.fromCharCode(0x3b1 + at));
  if (name !== 'sigmaf') NAMES.set(name[0].toUpperCase() + name.slice(1), String.fromCharCode(0x391 + at));
});
// A letter and its mark, as in &eacute;
for (const [mark, code, letters] of [['grave', 0x300, 'AEIOU'], ['acute', 0x301, 'AEIOUY'], ['circ', 0x302, 'AEIOU'], ['tilde', 0x303, 'ANO'], ['uml', 0x308, 'AEIOUY'], ['cedil', 0x327, 'C']]) {
  for (const letter of letters + letters.toLowerCase()) NAMES.set(letter + mark, (letter + String.fromCharCode(code)).normalize('NFC'));
}
export const ENTITY = /&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});/;

/* The text of one reference; itself, where it has no meaning. A number that is no character is U+FFFD. */
export function entity(reference) {
  const name = reference.slice(1, -1);
  if (name[0] !== '#') return NAMES.get(name) ?? reference;
  const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
  return code === 0 || code > 0x10ffff || code >= 0xd800 && code < 0xe000 ? '\ufffd' : String.fromCodePoint(code);
}
export const decoded = text => text.replace(new RegExp(ENTITY.source, 'g'), entity);
