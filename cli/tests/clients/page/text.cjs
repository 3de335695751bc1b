// What a model writes: how it looks, and that it does nothing.
'use strict';
const assert = require('node:assert');
const { sleep } = require('./browser.cjs');

const SAMPLE = [
  'Here is **bold**, *italic*, ~~struck~~, `code`, a [link](https://example.com) and https://example.org/a_b_c.',
  '## A list', '1. one', '2. two', '   - nested', '   - again', '3. three', '',
  '> A quotation', '', '| format | bits |', '|---|---:|', '| Q4_0 | 4.5 |', '| Q8_0 | 8.5 |', '',
  '- [x] load', '- [ ] compile', '', 'The roots, and what attention is:', String.raw`\[x = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a}\]`,
  String.raw`\[\operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right) V, \quad \sum_{i=1}^n \hat p_i = 1\]`, '',
  '```rust', '// The sum of the first n numbers.', 'fn sum(n: u64) -> u64 {', '    let text = "n·(n+1)/2";', '    n * (n + 1) / 2', '}', '```',
].join('\n');
const NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [a](javascript:window.hacked=1) [b](JaVaScRiPt:x) [c](data:text/html,x) ![d](http://evil.example/x.png) [e](java&#115;cript:window.hacked=1) [f](&#106;avascript:x) &lt;img src=x onerror=window.hacked=1&gt; <sub><img src=x onerror=window.hacked=1></sub> <a href="javascript:window.hacked=1">e</a> $<img src=x onerror=window.hacked=1>$ \\(\\text{<script>window.hacked=1</script>}\\) \\(\\href{javascript:window.hacked=1}{x}\\)\n\n<details ontoggle="window.hacked=1" open><summary><img src=x onerror=window.hacked=1></summary><script>window.hacked=1</script></details>\n\n<details/ontoggle=window.hacked=1 open>\n\n```html"><img src=x onerror=window.hacked=1>\n</code><script>window.hacked=1</script>\n```\n| <b>x</b> | y |\n|---|---|\n| <svg onload=window.hacked=1> | z |';
const FORMATS = [
  ['***both*** **bold *within*** *a*', '<p><em><strong>both</strong></em> <strong>bold <em>within</em></strong> <em>a</em></p>'],
  ['Figures:\n| a | b |\n|---|---|\n| 1 | 2 |', '<p>Figures:</p><div class="wide" tabindex="0" role="region" aria-label="Table"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>'],
  ['a | b\n---\nno table', '<p>a | b</p><hr><p>no table</p>'],
  ['The year\n1986. was good', '<p>The year\n1986. was good</p>'],
  ['Steps:\n1. one\n2. two', '<p>Steps:</p><ol start="1" style="--digits: 1;"><li>one</li><li>two</li></ol>'],
  ['998. a\n999. b\n1000. c', '<ol start="998" style="--digits: 4;"><li>a</li><li>b</li><li>c</li></ol>'],
  ['- [x] *done*\n- [ ] not', '<ul class="tasks"><li class="task"><input type="checkbox" disabled="" aria-label="done"><em>done</em></li><li class="task"><input type="checkbox" disabled="" aria-label="to do">not</li></ul>'],
  ['- [y] a\n- [x]b', '<ul><li>[y] a</li><li>[x]b</li></ul>'],
  ['5 \\* 3, \\$2 and \\$3', '<p>5 * 3, $2 and $3</p>'],
  ['from $5 to $6, $HOME/$PATH, $ x $, US$5 and $1', '<p>from $5 to $6, $HOME/$PATH, $ x $, US$5 and $1</p>'],
  ['\\[no end yet\n- x', '<p><code class="apart">\\[no end yet\n- x</code></p>'], ['\\[no formula\n\nmore', '<p>[no formula</p><p>more</p>'],
];
const FOLDED = (summary, inner, more = '') => `<details${more}><summary><svg aria-hidden="true"><use href="#i-next"></use></svg><span>${summary}</span></summary><div>${inner}</div></details>`;
const TAGS = [
  ['H<sub>2</sub>O, E = mc<SUP>2</SUP>, a<br>b<br/>c<BR />d', '<p>H<sub>2</sub>O, E = mc<sup>2</sup>, a<br>b<br>c<br>d</p>'],
  ['x<sub>i<sup>**2**</sup></sub> <sub>no end', '<p>x<sub>i<sup><strong>2</strong></sup></sub> &lt;sub&gt;no end</p>'],
  ['AT&amp;T &lt;b&gt; &quot;&eacute;&Omega;&rarr;&#233;&#xE9;&nbsp;&copy;', '<p>AT&amp;T &lt;b&gt; "éΩ→éé&nbsp;©</p>'],
  ['&amp;lt; &unknown; &amp &; &#0;&#xD800;&#9999999; \\&amp;', '<p>&amp;lt; &amp;unknown; &amp;amp &amp;; \ufffd\ufffd\ufffd &amp;amp;</p>'],
  ['`&lt;br> <br>`\n\n&#42;no&#42; &lt;br&gt;', '<p><code>&amp;lt;br&gt; &lt;br&gt;</code></p><p>*no* &lt;br&gt;</p>'],
  ['<sub onclick="x">a</sub> <br class="x"> <b>b</b>', '<p>&lt;sub onclick="x"&gt;a&lt;/sub&gt; &lt;br class="x"&gt; &lt;b&gt;b&lt;/b&gt;</p>'],
  ['| a |\n|---|\n| 1<br>2&lt;3 |', '<div class="wide" tabindex="0" role="region" aria-label="Table"><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1<br>2&lt;3</td></tr></tbody></table></div>'],
  ['<details><summary>**More**</summary>\n\n- a\n\n</details>', FOLDED('<strong>More</strong>', '<ul><li>a</li></ul>')],
  ['Text\n<details open><summary>A</summary>b</details> c', `<p>Text</p>${FOLDED('A', '<p>b</p>', ' open=""')}<p> c</p>`],
  ['<details>\n<details>\nx\n</details>\n`y`\n</details>', FOLDED('Details', FOLDED('Details', '<p>x</p>') + '<p><code>y</code></p>')],
  ['<details class="x" onclick="y">z</details>', FOLDED('Details', '<p>z</p>')],
  ['<details onclick=y>z', '<p>&lt;details onclick=y&gt;z</p>'],
  ['<details><summary>Still</summary>\ncomi', FOLDED('Still', '<p>comi</p>', ' open=""')],
  ['a <details>b</details>', '<p>a &lt;details&gt;b&lt;/details&gt;</p>'],
];
const LINKS = [
  ['[a](https://e/?x=1&amp;y=2)', 'https://e/?x=1&y=2', 'a'],
  ['[a](https://e/a_(b)).', 'https://e/a_(b)', 'a.'], ['[a](<https://e/b> "c")', 'https://e/b', 'a'],
  ['(see https://e/a_(b).)', 'https://e/a_(b)', '(see https://e/a_(b).)'], ['([a](https://e/c))', 'https://e/c', '(a)'],
];
const COLOURED = [['rust', `fn f<'a>(x: &'a str) -> char { '\\'' }`, ['fn', 'str', 'char', `'\\''`]], ['python', `x = 'one'`, [`'one'`]], ['', `let x = "1"`, []]];

module.exports = (b, { home }) => {
  const evaluate = b.evaluate.bind(b);
  const drawn = (text, what) => evaluate(`{ const node = el('div'); markdown(node, ${JSON.stringify(text)}); ${what}; }`);
  const count = selector => evaluate(`document.querySelectorAll('.assistant .md ${selector}').length`);
  const present = text => evaluate(`show(revive({ id: 'sample', title: 'Formats', messages: [{ role: 'user', content: 'How many bits does a weight take?' }, { role: 'assistant', content: ${JSON.stringify(text)}, reasoning: 'The user wants a table.', thought: 2300, stats: { tokens: 181, rate: 54.2, prompt: 24 } }] }))`);
  return {
    async formats() {
      await b.visit(home);
      await present(SAMPLE);
      const expected = { strong: 1, em: 1, s: 1, 'p code': 1, a: 2, h2: 1, ol: 1, 'ol > li': 3, 'ol ul li': 2, blockquote: 1, 'tbody tr': 2, '.block': 1, '.k': 4, '.c': 1, '.task input': 2, 'math mfrac msqrt': 2 };
      for (const [selector, n] of Object.entries(expected)) assert.strictEqual(await count(selector), n, selector);
      assert.strictEqual(await evaluate(`document.querySelector('.thought').open`), false, 'reasoning is folded');
      await evaluate(`document.getElementById('scroll').scrollTop = 0`);
      await b.shoot('text-light');
      for (const [text, html] of FORMATS) assert.strictEqual(await drawn(text, 'node.innerHTML'), html);
      for (const [text, html] of TAGS) assert.strictEqual(await drawn(text, 'node.innerHTML'), html, text);
      for (const [text, ...link] of LINKS) assert.deepStrictEqual(await drawn(text, `[node.querySelector('a').getAttribute('href'), node.textContent]`), link);
      for (const [language, code, marked] of COLOURED) assert.deepStrictEqual(await drawn('```' + language + '\n' + code, `[...node.querySelectorAll('pre span')].map(one => one.innerText)`), marked);
    },
    async on_a_phone_in_the_dark() {
      await b.media('dark');
      await b.until(`document.documentElement.dataset.theme === 'dark'`);
      await evaluate(`document.getElementById('scroll').scrollTop = 1e6`);
      await b.shoot('text-dark');
      await b.call('Emulation.setDeviceMetricsOverride', { width: 390, height: 844, deviceScaleFactor: 1, mobile: true });
      await b.until(`document.body.classList.contains('narrow')`);
      assert(await evaluate(`document.documentElement.scrollWidth <= innerWidth`), 'nothing is wider than the screen');
      await evaluate(`document.getElementById('scroll').scrollTop = 330`);
      await b.shoot('text-phone');
      await b.call('Emulation.clearDeviceMetricsOverride');
      await b.media('light');
    },
    async what_is_folded_stays_so() {
      const grown = `{ const node = el('div'); const parts = ['<details><summary>A</summary>', 'b', '\\n</details>', '\\n\\nc']; let text = ''; const open = []; for (const part of parts) { text += part; markdown(node, text); open.push(node.firstChild.open); if (part === 'b') node.firstChild.open = false; } open; }`;
      assert.deepStrictEqual(await evaluate(grown), [true, true, false, false]);
      const code = '<details>\n\n```html\n</details>\n```\n\nx\n</details>';
      assert.deepStrictEqual(await drawn(code, `[node.children.length, node.querySelector('code').textContent, node.querySelector('p').textContent]`), [1, '</details>', 'x']);
    },
    async code_is_copied() {
      await b.call('Browser.grantPermissions', { permissions: ['clipboardReadWrite', 'clipboardSanitizedWrite'] });
      await b.click('.block button');
      await b.until(`document.querySelector('.block use').getAttribute('href') === '#i-check'`);
      assert.match(await evaluate(`navigator.clipboard.readText()`), /^\/\/ The sum[^]*\n}$/);
    },
    async hostile_text_is_inert() {
      await present(NASTY);
      await sleep(100);
      assert.strictEqual(await evaluate(`typeof window.hacked`), 'undefined');
      assert.strictEqual(await count('img') + await count('script') + await count('b') + await count('td svg') + await count('[href^=java]'), 0);
      assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('.md a')].map(a => a.protocol)`), ['http:']);
    },
    async nothing_becomes_a_script() {
      // Should a text ever get that far, the page's policy stops it.
      const tries = ['node.innerHTML = "<b>x</b>"', 'node.setAttribute("onclick", "window.hacked = 1"); node.click()', 'node.append(Object.assign(document.createElement("style"), { textContent: "* { color: red }" })); document.body.append(node)'];
      const outcomes = [];
      for (const attempt of tries) outcomes.push(await evaluate(`{ const node = document.createElement('div'); let threw = false; try { ${attempt}; } catch { threw = true; } threw; }`));
      await sleep(50);
      assert.deepStrictEqual([outcomes[0], await evaluate(`typeof window.hacked`), await evaluate(`getComputedStyle(document.body).color !== 'rgb(255, 0, 0)'`)], [true, 'undefined', true]);
      b.excuse(/Content Security Policy|Trusted/);
    },
    async long_texts_are_drawn_in_time() {
      const nasty = ['*'.repeat(20000), '['.repeat(20000), '`'.repeat(20000), '$'.repeat(20001), '\\('.repeat(9000), '> '.repeat(5000), '- '.repeat(5000), '|'.repeat(9000) + '\n' + '|-'.repeat(9000), '\\[\n'.repeat(5000), 'a '.repeat(50000), '$a '.repeat(10000), '\\begin{align}\n'.repeat(3000), '<details>\n'.repeat(5000), '<details>'.repeat(5000), '<details a'.repeat(5000), '<sub>'.repeat(20000), '<br'.repeat(20000), '&amp'.repeat(20000), '&amp;'.repeat(10000)];
      for (const text of nasty) {
        const time = await drawn(text, `const start = performance.now(); markdown(el('div'), ${JSON.stringify(text)}); performance.now() - start`);
        assert(time < 3000, `${text.slice(0, 10)}: ${time} ms`);
      }
    },
  };
};
