// TeX to MathML.
'use strict';
const assert = require('node:assert');

// A source and what stands within `math`. Attributes that only space or stretch are left out by `plain`.
const FORMULAS = [
  ['a_1 * b_2', '<msub><mi>a</mi><mn>1</mn></msub><mo>∗</mo><msub><mi>b</mi><mn>2</mn></msub>'],
  ['x^23', '<msup><mi>x</mi><mn>2</mn></msup><mn>3</mn>'], ['12.5x', '<mn>12.5</mn><mi>x</mi>'], ['x_i^2', '<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>'], ['x^2_i', '<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>'],
  ["f''(x)", '<msup><mi>f</mi><mo>″</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo>'], ["f'^2", '<msup><mi>f</mi><mrow><mo>′</mo><mn>2</mn></mrow></msup>'],
  [String.raw`\frac12`, '<mfrac><mn>1</mn><mn>2</mn></mfrac>'], [String.raw`\frac{a+b}{c}`, '<mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mi>c</mi></mfrac>'], [String.raw`{a \over b}`, '<mfrac><mi>a</mi><mi>b</mi></mfrac>'],
  [String.raw`\sqrt x`, '<msqrt><mi>x</mi></msqrt>'], [String.raw`\sqrt[3]{x}`, '<mroot><mi>x</mi><mn>3</mn></mroot>'], [String.raw`\binom nk`, '<mrow><mo>(</mo><mfrac linethickness="0"><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></mrow>'],
  [String.raw`\sum_{i=1}^n i`, '<munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>i</mi>'], [String.raw`\int_0^1`, '<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>'], [String.raw`\int\limits_0`, '<munder><mo>∫</mo><mn>0</mn></munder>'],
  [String.raw`\lim_{x\to0}`, '<munder><mo movablelimits="true">lim</mo><mrow><mi>x</mi><mo>→</mo><mn>0</mn></mrow></munder>'], [String.raw`2\sin x`, '<mn>2</mn><mspace width="0.1667em"></mspace><mi>sin</mi><mspace width="0.1667em"></mspace><mi>x</mi>'], [String.raw`\sin(x)`, '<mi>sin</mi><mo>(</mo><mi>x</mi><mo>)</mo>'],
  [String.raw`\alpha\Gamma\varepsilon`, '<mi>α</mi><mi mathvariant="normal">Γ</mi><mi>ε</mi>'], [String.raw`\mathbb{R}^n`, '<msup><mi>ℝ</mi><mi>n</mi></msup>'], [String.raw`\mathcal{L}\mathbf{x1}`, '<mi>ℒ</mi><mrow><mi>𝐱</mi><mn>𝟏</mn></mrow>'], [String.raw`\boldsymbol\theta`, '<mi>𝜽</mi>'], [String.raw`\mathrm{kg}`, '<mi mathvariant="normal">kg</mi>'], [String.raw`\operatorname{softmax}(z)`, '<mi>softmax</mi><mo>(</mo><mi>z</mi><mo>)</mo>'], [String.raw`\operatorname*{arg\,max}_x`, '<munder><mo movablelimits="true">arg\u2009max</mo><mi>x</mi></munder>'],
  [String.raw`\text{if } x`, '<mtext>if\u00a0</mtext><mi>x</mi>'], [String.raw`\text{if $x<1$ or 5\%}`, '<mrow><mtext>if\u00a0</mtext><mrow><mi>x</mi><mo>&lt;</mo><mn>1</mn></mrow><mtext>\u00a0or 5%</mtext></mrow>'],
  [String.raw`\left(\frac ab\right]`, '<mrow><mo>(</mo><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>]</mo></mrow>'], [String.raw`\left.x\right|_0`, '<msub><mrow><mi>x</mi><mo>|</mo></mrow><mn>0</mn></msub>'], [String.raw`\{x \mid x \ne 0\}`, '<mo>{</mo><mi>x</mi><mo>∣</mo><mi>x</mi><mo>≠</mo><mn>0</mn><mo>}</mo>'],
  [String.raw`\hat\beta \vec{x}`, '<mover accent="true"><mi>β</mi><mo>ˆ</mo></mover><mover accent="true"><mi>x</mi><mo>→</mo></mover>'], [String.raw`\underbrace{ab}_{n}`, '<munder><munder><mrow><mi>a</mi><mi>b</mi></mrow><mo>⏟</mo></munder><mi>n</mi></munder>'], [String.raw`a \overset{!}{=} b`, '<mi>a</mi><mover><mrow><mo>=</mo></mrow><mrow><mo>!</mo></mrow></mover><mi>b</mi>'],
  [String.raw`\begin{pmatrix}1&2\\3&4\end{pmatrix}`, '<mrow><mo>(</mo><mtable class="matrix"><mtr><mtd class="centre"><mn>1</mn></mtd><mtd class="centre"><mn>2</mn></mtd></mtr><mtr><mtd class="centre"><mn>3</mn></mtd><mtd class="centre"><mn>4</mn></mtd></mtr></mtable><mo>)</mo></mrow>'],
  [String.raw`\begin{cases}a\\b\end{cases}`, '<mrow><mo>{</mo><mtable class="cases"><mtr><mtd class="left"><mi>a</mi></mtd></mtr><mtr><mtd class="left"><mi>b</mi></mtd></mtr></mtable></mrow>'],
  [String.raw`a &= -b \\ &= c`, '<mtable class="aligned" displaystyle="true"><mtr><mtd class="right"><mi>a</mi></mtd><mtd class="left"><mrow></mrow><mo>=</mo><mo>−</mo><mi>b</mi></mtd></mtr><mtr><mtd class="right"></mtd><mtd class="left"><mrow></mrow><mo>=</mo><mi>c</mi></mtd></mtr></mtable>'],
  [String.raw`\lvert x\rvert a/b`, '<mo>|</mo><mi>x</mi><mo>|</mo><mi>a</mi><mo>/</mo><mi>b</mi>'],
  [String.raw`\not= \not\in`, '<mo>≠</mo><mo>∉</mo>'], [String.raw`\color{red} x \textcolor{blue}{y}`, '<mi>x</mi><mi>y</mi>'], [String.raw`50\% \$ 3\,\mathrm{m}`, '<mn>50</mn><mi mathvariant="normal">%</mi><mi mathvariant="normal">$</mi><mn>3</mn><mspace width="0.1667em"></mspace><mi mathvariant="normal">m</mi>'],
  [String.raw`\foo{x}`, '<mtext class="unknown">\\foo</mtext><mi>x</mi>'], ['距離 é', '<mtext>距</mtext><mtext>離</mtext><mi>é</mi>'], [String.raw`\displaystyle\sum x`, '<mstyle displaystyle="true" scriptlevel="0"><mo>∑</mo><mi>x</mi></mstyle>'], [String.raw`{\bf x} y`, '<mi>𝐱</mi><mi>y</mi>'],
];
const UNREADABLE = ['\\frac{1', 'a}', '{', 'x^', 'x^1^2', '\\left( x', '\\right)', '\\begin{pmatrix}1', '\\begin{nothing}x\\end{nothing}', '\\begin{matrix}a\\end{pmatrix}', '\\end{x}', '\\\\begin{', '', '\\sqrt[3', '\\text{a'];
const DEEP = ['{', '\\frac', '\\sqrt{', '\\left(', '^', 'x^{', '\\text{$', '\\begin{matrix}', 'a\\over ', '\\bf ', '\\not', '\\hat', '&', '\\\\', "'", '\\sqrt[', '\\begin{array}{', '\\overset{', '\\mathbf{', '\\displaystyle'];

module.exports = (b, { home }) => {
  const evaluate = b.evaluate.bind(b);
  const plain = html => html.replace(/ (form|fence|stretchy|lspace|rspace)="[^"]*"/g, '').replaceAll('&nbsp;', '\u00a0');
  const read = text => evaluate(`formula(${JSON.stringify(text)}, true)?.innerHTML ?? null`);
  const within = text => evaluate(`{ const node = el('div'); markdown(node, ${JSON.stringify(text)}); [...node.querySelectorAll('math')].map(math => math.getAttribute('display') + ' ' + math.getAttribute('alttext')); }`);
  return {
    async translation() {
      await b.visit(home);
      for (const [text, html] of FORMULAS) assert.strictEqual(plain(await read(text) ?? 'null'), html, text);
      for (const text of UNREADABLE) assert.strictEqual(await read(text), null, text);
      // A sign at the beginning, or after another, belongs to what follows.
      const forms = await evaluate(`[...formula('-a = -b - (-c), x^{-1}', true).querySelectorAll('mo')].filter(mo => mo.textContent === '−').map(mo => mo.getAttribute('form'))`);
      assert.deepStrictEqual(forms, ['prefix', 'prefix', null, 'prefix', 'prefix']);
    },
    async places_in_a_text() {
      assert.deepStrictEqual(await within(String.raw`so \(a_1 * b_2\) and $x_1*2*z_2$ or \[y\] or $$z$$.`), ['inline a_1 * b_2', 'inline x_1*2*z_2', 'block y', 'block z']);
      assert.deepStrictEqual(await within(String.raw`$\{1, 2\}$, $50\%$, $x$, $2$-fold, $\alpha$`), ['inline \\{1, 2\\}', 'inline 50\\%', 'inline x', 'inline 2', 'inline \\alpha']);
      assert.deepStrictEqual(await within('Thus\n\\[\nx\n- y\n= z\n\\]\nholds'), ['block x\n- y\n= z']);
      assert.deepStrictEqual(await within('$$\nx\n$$\n\n\\begin{align*}\na &= b\n\\end{align*}\n\n- item $$q$$'), ['block x', 'block \\begin{align*}\na &= b\n\\end{align*}', 'block q']);
      assert.deepStrictEqual(await within('`$x$` and\n\n```\n$$y$$\n```\n'), [], 'code is no formula');
      assert.strictEqual(await evaluate(`{ const node = el('div'); markdown(node, ${JSON.stringify('broken \\(\\frac{1\\)')}); node.innerHTML; }`), '<p>broken <code>\\(\\frac{1\\)</code></p>');
    },
    async shapes() {
      // A browser that knows MathML draws a fraction higher than a letter, and a root wider than what is below it.
      const size = text => evaluate(`{ const node = el('div', { class: 'md' }, formula(${JSON.stringify(text)}, false)); document.getElementById('log').append(node); const { width, height } = node.querySelector('math').getBoundingClientRect(); node.remove(); [width, height]; }`);
      const [letter, fraction, matrix] = [await size('x'), await size('\\frac{x}{y}'), await size('\\begin{matrix}a&b\\\\c&d\\end{matrix}')];
      assert(fraction[1] > 1.3 * letter[1] && matrix[1] > 1.5 * letter[1] && matrix[0] > 2 * letter[0], JSON.stringify([letter, fraction, matrix]));
    },
    async hostile_formulas_end_in_time() {
      for (const part of DEEP) for (const times of [60, 3000]) {
        const text = part.repeat(times).slice(0, 19000);
        const [time, name] = await evaluate(`{ const start = performance.now(); const node = formula(${JSON.stringify(text)}, true); [performance.now() - start, node?.localName ?? null]; }`);
        assert(time < 1500, `${part} ${times} times: ${time} ms`);
        assert(name === null || name === 'math');
      }
      assert.strictEqual(await read('x'.repeat(20001)), null, 'too long');
    },
  };
};
