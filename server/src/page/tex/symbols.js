// What TeX's names stand for, by the place they take in a formula.

const table = text => new Map(text.trim().split(/\s+/).map((word, i, all) => i % 2 ? null : [word, all[i + 1]]).filter(Boolean));

/* Letters, as TeX slants them. */
export const LETTERS = table(`
alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ varkappa ϰ lambda λ mu μ nu ν xi ξ omicron ο
pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω ell ℓ imath ı jmath ȷ partial ∂
varGamma 𝛤 varDelta 𝛥 varTheta 𝛩 varLambda 𝛬 varXi 𝛯 varPi 𝛱 varSigma 𝛴 varUpsilon 𝛶 varPhi 𝛷 varPsi 𝛹 varOmega 𝛺`);
/* What stands upright. */
export const UPRIGHT = table(`
Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω hbar ℏ hslash ℏ Re ℜ Im ℑ wp ℘ aleph ℵ beth ℶ gimel ℷ daleth ℸ
infty ∞ emptyset ∅ varnothing ∅ nabla ∇ top ⊤ bot ⊥ angle ∠ measuredangle ∡ sphericalangle ∢ triangle △ square □ Box □ blacksquare ■ lozenge ◊ Diamond ◇
forall ∀ exists ∃ nexists ∄ complement ∁ flat ♭ natural ♮ sharp ♯ clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ mho ℧ eth ð degree ° checkmark ✓
ldots … dots … dotsc … dotso … cdots ⋯ dotsb ⋯ dotsm ⋯ dotsi ⋯ vdots ⋮ ddots ⋱ prime ′ backprime ‵ bigstar ★ circledR ® maltese ✠ S § P ¶
copyright © pounds £ yen ¥ AA Å aa å ae æ AE Æ oe œ OE Œ o ø O Ø ss ß dag † ddag ‡ # # $ $ % % & & _ _`);
/* Between two operands. */
export const BINARY = table(`
pm ± mp ∓ times × div ÷ cdot ⋅ cdotp ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ cup ∪ cap ∩ uplus ⊎ sqcup ⊔ sqcap ⊓
vee ∨ lor ∨ wedge ∧ land ∧ setminus ∖ smallsetminus ∖ wr ≀ amalg ⨿ dagger † ddagger ‡ boxplus ⊞ boxminus ⊟ boxtimes ⊠ boxdot ⊡ ltimes ⋉ rtimes ⋊
triangleleft ◃ triangleright ▹ bigtriangleup △ bigtriangledown ▽ diamond ⋄ bigcirc ◯ barwedge ⊼ veebar ⊻ curlyvee ⋎ curlywedge ⋏ dotplus ∔ Cup ⋓ Cap ⋒`);
/* That say how two sides relate. */
export const RELATIONS = table(`
le ≤ leq ≤ leqslant ⩽ leqq ≦ ge ≥ geq ≥ geqslant ⩾ geqq ≧ ne ≠ neq ≠ lt < gt > ll ≪ gg ≫ lll ⋘ ggg ⋙ equiv ≡ sim ∼ simeq ≃ approx ≈ approxeq ≊ cong ≅ ncong ≇
propto ∝ varpropto ∝ asymp ≍ doteq ≐ triangleq ≜ coloneqq ≔ coloneq ≔ eqqcolon ≕ prec ≺ succ ≻ preceq ⪯ succeq ⪰ in ∈ notin ∉ ni ∋ owns ∋ subset ⊂ supset ⊃
subseteq ⊆ supseteq ⊇ nsubseteq ⊈ nsupseteq ⊉ subsetneq ⊊ supsetneq ⊋ sqsubset ⊏ sqsupset ⊐ sqsubseteq ⊑ sqsupseteq ⊒ mid ∣ nmid ∤ parallel ∥ nparallel ∦ perp ⊥
vdash ⊢ dashv ⊣ models ⊨ vDash ⊨ Vdash ⊩ bowtie ⋈ smile ⌣ frown ⌢ nless ≮ ngtr ≯ nleq ≰ ngeq ≱ lesssim ≲ gtrsim ≳ therefore ∴ because ∵ colon : between ≬
to → rightarrow → longrightarrow ⟶ leftarrow ← gets ← longleftarrow ⟵ leftrightarrow ↔ longleftrightarrow ⟷ Rightarrow ⇒ Longrightarrow ⟹ implies ⟹ Leftarrow ⇐
Longleftarrow ⟸ impliedby ⟸ Leftrightarrow ⇔ Longleftrightarrow ⟺ iff ⟺ mapsto ↦ longmapsto ⟼ hookrightarrow ↪ hookleftarrow ↩ uparrow ↑ downarrow ↓ updownarrow ↕
Uparrow ⇑ Downarrow ⇓ Updownarrow ⇕ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖ rightharpoonup ⇀ rightharpoondown ⇁ leftharpoonup ↼ leftharpoondown ↽
rightleftharpoons ⇌ leftrightharpoons ⇋ rightrightarrows ⇉ leftleftarrows ⇇ twoheadrightarrow ↠ rightsquigarrow ⇝ leadsto ⇝ nrightarrow ↛ nleftarrow ↚ nRightarrow ⇏
circlearrowleft ↺ circlearrowright ↻ vartriangleleft ⊲ vartriangleright ⊳ trianglelefteq ⊴ trianglerighteq ⊵ multimap ⊸`);
/* Large ones, whose scripts stand above and below where a formula is set apart, and integrals, whose scripts stand beside. */
export const LARGE = table('sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigodot ⨀ bigvee ⋁ bigwedge ⋀ biguplus ⨄ bigsqcup ⨆');
export const INTEGRALS = table('int ∫ iint ∬ iiint ∭ iiiint ⨌ oint ∮ oiint ∯ oiiint ∰ smallint ∫');
/* Names of functions, and those whose scripts stand below. */
export const FUNCTIONS = new Set('sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc exp log ln lg arg deg dim hom ker tg sh ch th'.split(' '));
export const LIMITS = new Map('lim lim,limsup lim sup,liminf lim inf,max max,min min,sup sup,inf inf,det det,gcd gcd,Pr Pr,argmax arg max,argmin arg min,injlim inj lim,projlim proj lim'.split(',').map(pair => {
  const at = pair.indexOf(' ');
  return [pair.slice(0, at), pair.slice(at + 1).replace(' ', '\u2009')];
}));
export const DELIMITERS = table(String.raw`
( ( ) ) [ [ ] ] / / | | . . < ⟨ > ⟩ \{ { \} } \lbrace { \rbrace } \lbrack [ \rbrack ] \| ‖ \vert | \Vert ‖ \lvert | \rvert | \lVert ‖ \rVert ‖ \langle ⟨ \rangle ⟩
\lfloor ⌊ \rfloor ⌋ \lceil ⌈ \rceil ⌉ \lgroup ⟮ \rgroup ⟯ \backslash \ \uparrow ↑ \downarrow ↓ \updownarrow ↕ \Uparrow ⇑ \Downarrow ⇓ \ulcorner ⌜ \urcorner ⌝ \llbracket ⟦ \rrbracket ⟧`);
export const OPENING = new Set('([{⟨⌊⌈⟮⌜⟦'), CLOSING = new Set(')]}⟩⌋⌉⟯⌝⟧');
export const ACCENTS = table('hat ˆ widehat ˆ bar ¯ vec → tilde ˜ widetilde ˜ dot ˙ ddot ¨ dddot ⃛ acute ´ grave ` breve ˘ check ˇ widecheck ˇ mathring ˚ overrightarrow → overleftarrow ← overleftrightarrow ↔');
export const WIDE = new Set(['widehat', 'widetilde', 'widecheck', 'overrightarrow', 'overleftarrow', 'overleftrightarrow']);
export const BRACES = new Map([['overbrace', '⏞'], ['underbrace', '⏟'], ['overbracket', '⎴'], ['underbracket', '⎵'], ['underrightarrow', '→'], ['underleftarrow', '←']]);
export const ARROWS = table('xrightarrow → xleftarrow ← xleftrightarrow ↔ xRightarrow ⇒ xLeftarrow ⇐ xLeftrightarrow ⇔ xmapsto ↦ xhookrightarrow ↪ xrightleftharpoons ⇌ xlongequal =');
/* Widths of spaces in em. */
export const SPACES = new Map([[',', .1667], ['thinspace', .1667], [':', .2222], ['>', .2222], ['medspace', .2222], [';', .2778], ['thickspace', .2778], ['!', -.1667], ['negthinspace', -.1667], [' ', .25], ['enspace', .5], ['quad', 1], ['qquad', 2]]);
/* What has no place in a formula on a screen. */
export const NOTHING = new Set(['nonumber', 'notag', 'limits', 'nolimits', 'relax', 'strut', 'mathstrut', 'allowbreak', 'nobreak', 'hline', 'hfill', 'hfil', 'noindent', 'centering', 'protect']);

/* Alphabets: where upper, lower case, digits, upper and lower case Greek begin, and what stands elsewhere. */
const PLACES = {
  bf: [0x1D400, 0x1D41A, 0x1D7CE, 0x1D6A8, 0x1D6C2], bi: [0x1D468, 0x1D482, 0x1D7CE, 0x1D71C, 0x1D736], bb: [0x1D538, 0x1D552, 0x1D7D8], cal: [0x1D49C, 0x1D4B6], frak: [0x1D504, 0x1D51E],
  sf: [0x1D5A0, 0x1D5BA, 0x1D7E2], tt: [0x1D670, 0x1D68A, 0x1D7F6],
};
const ELSEWHERE = {
  bb: table('C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ'), cal: table('B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ'), frak: table('C ℭ H ℌ I ℑ R ℜ Z ℨ'),
};
const RANGES = [['A', 'Z'], ['a', 'z'], ['0', '9'], ['Α', 'Ω'], ['α', 'ω']].map(ends => ends.map(end => end.codePointAt(0)));
/* A character in an alphabet; itself, where that has none. */
export function inAlphabet(character, alphabet) {
  const code = character.codePointAt(0), at = RANGES.findIndex(([first, last]) => code >= first && code <= last);
  const start = PLACES[alphabet]?.[at];
  return ELSEWHERE[alphabet]?.get(character) ?? (start === undefined ? character : String.fromCodePoint(start + code - RANGES[at][0]));
}
export const ALPHABETS = new Map(Object.entries({
  mathbf: 'bf', bf: 'bf', bold: 'bf', boldsymbol: 'bi', bm: 'bi', pmb: 'bi', mathbb: 'bb', Bbb: 'bb', mathcal: 'cal', cal: 'cal', mathscr: 'cal', mathfrak: 'frak', frak: 'frak',
  mathsf: 'sf', sf: 'sf', mathtt: 'tt', tt: 'tt', mathrm: 'rm', rm: 'rm', mathit: 'it', it: 'it', mathnormal: '', mathbit: 'bi',
}));
