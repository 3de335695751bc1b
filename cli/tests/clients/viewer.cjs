// The page of `gristmill kernels --html` in a headless Chromium: viewer.cjs BROWSER FILE. With GRISTMILL_SCREENSHOTS=FOLDER it leaves pictures there.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const os = require('node:os');
const { pathToFileURL } = require('node:url');
const { Browser } = require('./page/browser.cjs');

const [program, file] = process.argv.slice(2);
const NODES = 5000;

/* The page with a function of so many nodes in place of its own: layers of twenty, each of which reads two of the layer above. */
function large(page) {
  const [before, rest] = page.split('type="application/json">');
  const end = rest.indexOf('</script');
  const data = JSON.parse(rest.slice(0, end));
  const op = data.ops.findIndex(([name]) => name === 'Add');
  const nodes = Array.from({ length: NODES }, (_, n) => [n, op, 'f32', '[8, 64]', '', n < 20 ? [] : [n - 20, Math.floor(n / 20) * 20 - 20 + ((n * 7) % 20)]]);
  const last = nodes.slice(-20).map(([n]) => n);
  data.functions = [{ ...data.functions[0], name: 'large', nodes, passes: [{ pass: 0, roots: last.slice(1), rules: [] }, { pass: 1, roots: last, rules: [] }] }];
  return `${before}type="application/json">${JSON.stringify(data).replaceAll('<', '\\u003c')}${rest.slice(end)}`;
}

function checks(browser, folder) {
  const visit = async (name, ready = `document.querySelectorAll('.list .row').length > 5`) => {
    await browser.call('Page.navigate', { url: 'about:blank' });
    await browser.call('Page.navigate', { url: name });
    await browser.until(`document.readyState === 'complete' && ${ready}`);
  };
  const home = pathToFileURL(file).href;
  const text = selector => browser.evaluate(`document.querySelector(${JSON.stringify(selector)}).innerText`);
  const tab = async name => { await browser.click(`#tab-${name}`); await browser.until(`document.getElementById('panel').className === '${name}'`); };
  const inked = () => browser.evaluate(`(() => { const c = document.querySelector('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()`);
  return {
    async functions_and_their_graphs() {
      await visit(home);
      assert((await browser.evaluate(`document.querySelectorAll('#functions button').length`)) > 3);
      await browser.evaluate(`go({ function: data.functions.findIndex(f => f.name.endsWith('moe.one')) })`);
      assert.match(await text('#head'), /moe\.one/);
      assert.strictEqual(await browser.evaluate(`document.querySelectorAll('.steps button').length`), await browser.evaluate('data.passes.length'));
      assert((await inked()) > 1000, 'something is drawn');
      await browser.shoot('viewer-graph');
      // What attention became.
      await browser.evaluate(`go({ pass: shown().passes.findIndex(p => data.passes[p.pass][0] === 'attention') })`);
      assert((await browser.evaluate(`graph().change(number('pass')).added.size`)) > 10);
      assert.strictEqual(await browser.evaluate(`[...graph().change(number('pass')).removed].filter(n => graph().nodes.get(n).op[0] === 'Attention').length`), 1);
      await browser.evaluate(`go({ changed: 1 })`);
      assert((await browser.evaluate(`document.querySelectorAll('.row.new').length`)) > 0);
      await browser.shoot('viewer-change');
      await browser.evaluate(`go({ view: 'before' })`);
      assert.strictEqual(await browser.evaluate(`document.querySelectorAll('.row.new').length`), 0);
    },
    async the_costliest_is_first() {
      await visit(home);
      const costs = await browser.evaluate(`data.functions.map(f => f.calls * f.seconds)`);
      assert.strictEqual(await browser.evaluate(`state.function`), costs.indexOf(Math.max(...costs)));
      assert.strictEqual(await browser.evaluate(`document.querySelector('#functions .on').title === shown().name`), true);
      // What the cost model says is told from what was measured, in each panel.
      const times = /\d (?:s|ms|µs)\b(?! modelled)/;
      for (const name of ['graph', 'decisions', 'kernels']) {
        await tab(name);
        const said = (await browser.evaluate(`[...document.querySelectorAll('#functions, #head, #panel .list, #panel .detail, #panel .names, #panel .facts')].map(node => node.innerText).join('\\n')`));
        assert.match(said, / (ms|µs) modelled/);
        assert(!times.test(said), `${name}: ${times.exec(said)?.input.slice(Math.max(0, times.exec(said).index - 30), times.exec(said).index + 20)}`);
      }
    },
    async a_graph_can_be_read() {
      for (const [width, height] of [[1280, 860], [820, 1180], [390, 844]]) {
        await browser.call('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 800 });
        await visit(home);
        const all = await browser.evaluate(`data.functions.map((_, at) => at).sort((a, b) => (b === state.function) - (a === state.function))`);
        for (const at of width > 1000 ? all : all.slice(0, 1)) {
          await browser.evaluate(`go({ function: ${at} })`);
          const { scale, small, seen, hidden, crossed, wide } = await browser.evaluate(`(() => {
            const d = graphPanel.drawing, { at, canvas } = d, n = at.numbers.length, boxes = at.numbers.map((_, i) => [at.x[i], at.y[i]]);
            const apart = ([ax, ay], [bx, by]) => Math.abs(ax - bx) >= BOX.width || Math.abs(ay - by) >= BOX.height;
            let hidden = 0, crossed = 0;
            for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) hidden += !apart(boxes[i], boxes[j]);
            for (let i = n; i < at.x.length; i++) crossed += boxes.some(([x, y]) => y === at.y[i] && Math.abs(at.x[i] - x) < BOX.width / 2);
            const pen = canvas.getContext('2d');
            pen.font = '600 13px system-ui, sans-serif';
            return {
              scale: d.scale, small: at.width * d.scale <= canvas.clientWidth && at.height * d.scale <= canvas.clientHeight, hidden, crossed,
              seen: boxes.filter(([x, y]) => (x => x > 0 && x < canvas.clientWidth)(d.left + (x + BOX.width / 2) * d.scale) && (y => y > 0 && y < canvas.clientHeight)(d.top + (y + BOX.height / 2) * d.scale)).length,
              wide: pen.measureText(fittedTo(pen, 'W'.repeat(80), BOX.width - 20)).width - BOX.width + 20,
            };
          })()`);
          assert(scale >= 0.85 && seen > 0, `function ${at}: ${scale}, ${seen} boxes in sight`);
          assert.deepStrictEqual([hidden, crossed, wide <= 0], [0, 0, true], 'no box and no line lies behind a box, and words stay in theirs');
          assert.strictEqual(await browser.evaluate(`graphPanel.drawing.map() === null`), small, 'there is a map where not all is seen');
        }
      }
      await browser.call('Emulation.clearDeviceMetricsOverride');
      await visit(home);
      // A touch of the map goes there.
      const top = await browser.evaluate(`graphPanel.drawing.top`);
      const spot = await browser.evaluate(`(() => { const d = graphPanel.drawing, m = d.map(), r = d.canvas.getBoundingClientRect(); return { x: r.left + m.x + m.width / 2, y: r.top + m.y + m.height - 2 }; })()`);
      for (const type of ['mousePressed', 'mouseReleased']) await browser.call('Input.dispatchMouseEvent', { type, ...spot, button: 'left', clickCount: 1 });
      await browser.until(`graphPanel.drawing.top < ${top}`);
      await browser.evaluate(`graphPanel.drawing.whole()`);
      assert(await browser.evaluate(`(d => d.at.height * d.scale <= d.canvas.clientHeight && d.at.width * d.scale <= d.canvas.clientWidth)(graphPanel.drawing)`), 'the whole is the whole');
    },
    async nodes_by_keys() {
      await visit(home);
      await browser.evaluate(`document.querySelector('.list').focus()`);
      for (let i = 0; i < 4; i++) await browser.key('ArrowDown');
      const chosen = await browser.evaluate(`state.node`);
      assert.notStrictEqual(chosen, undefined);
      assert.match(await text('.node h3'), new RegExp(`^%${chosen} `));
      assert.strictEqual(await browser.evaluate(`document.querySelectorAll('.row.on').length`), 1);
      assert.strictEqual(await browser.evaluate(`document.activeElement.className`), 'list');
      // A click on the drawing selects what is there.
      const spot = await browser.evaluate(`(() => { const d = graphPanel.drawing, i = d.at.numbers.length - 1, r = d.canvas.getBoundingClientRect(); d.centre(i); d.draw(); return { x: r.left + r.width / 2, y: r.top + r.height / 2, n: d.at.numbers[i] }; })()`);
      for (const type of ['mousePressed', 'mouseReleased']) await browser.call('Input.dispatchMouseEvent', { type, x: spot.x, y: spot.y, button: 'left', clickCount: 1 });
      await browser.until(`number('node') === ${spot.n}`);
    },
    async rules_decisions_kernels_texts() {
      await visit(home + '#function=' + (await browser.evaluate(`data.functions.find(f => f.name.endsWith('moe.one')).name`)));
      await tab('rules');
      assert.match(await text('#panel'), /x \+ 0 -> x/);
      assert((await browser.evaluate(`document.querySelectorAll('td.cases li').length`)) > 5, 'cases of what rules changed');
      await browser.shoot('viewer-rules');
      await tab('decisions');
      await browser.evaluate(`go({ decision: shown().decisions.findIndex(d => d.options.length > 2) })`);
      assert.match(await text('.detail'), /✓/);
      assert((await browser.evaluate(`document.querySelectorAll('.detail tr').length`)) > 2);
      await browser.shoot('viewer-decisions');
      await tab('kernels');
      const panes = await browser.evaluate(`[...document.querySelectorAll('.pane pre')].map(p => p.textContent)`);
      assert(panes[0].includes('kind=global') && panes[1].includes('void '), 'two stages side by side');
      await browser.shoot('viewer-kernels');
      await tab('text');
      assert.match(await text('.pane pre'), /# slot 0/);
    },
    async search_and_the_way_back() {
      await visit(home);
      await browser.key('/');
      assert.strictEqual(await browser.focused(), 'find');
      await browser.type('void r_');
      await browser.until(`document.querySelectorAll('.hit').length > 0`);
      await browser.shoot('viewer-search');
      await browser.key('Enter');
      await browser.until(`document.getElementById('panel').className === 'kernels' && String(getSelection()).includes('void r_')`);
      await browser.evaluate('history.back()');
      await browser.until(`document.getElementById('panel').className === 'graph'`);
      await browser.evaluate(`document.getElementById('find').focus()`);
      await browser.type('nothing has such a name');
      await browser.until(`document.getElementById('found').innerText.includes('Nothing found')`);
      await browser.key('Escape');
      assert(await browser.evaluate(`document.getElementById('found').hidden`));
    },
    async five_thousand_nodes() {
      const page = path.join(folder, 'large.html');
      fs.writeFileSync(page, large(fs.readFileSync(file, 'utf8')));
      await visit(pathToFileURL(page).href);
      assert((await browser.evaluate(`document.querySelectorAll('.list .row').length`)) < 200, 'only what is seen is there');
      const [laid, drawn, chosen] = await browser.evaluate(`(() => {
        const took = work => { const start = performance.now(); work(); return performance.now() - start; };
        const numbers = graph().after(0);
        return [took(() => layout(numbers, graph().nodes)), took(() => graphPanel.drawing.whole()), took(() => go({ node: numbers[numbers.length >> 1] }))];
      })()`);
      assert.strictEqual(await browser.evaluate(`document.querySelectorAll('.row.on').length`), 1, 'the list has moved to it');
      assert(await browser.evaluate(`(() => { const d = graphPanel.drawing, i = d.at.place.get(number('node')), x = d.left + d.at.x[i] * d.scale, y = d.top + d.at.y[i] * d.scale; return x >= 0 && y >= 0 && x < d.canvas.clientWidth && y < d.canvas.clientHeight; })()`), 'and so has the drawing');
      console.log(`  ${NODES} nodes: laid out in ${laid.toFixed(0)} ms, drawn in ${drawn.toFixed(0)} ms, one chosen in ${chosen.toFixed(0)} ms`);
      assert(laid < 3000 && drawn < 1000 && chosen < 1500, `${laid} ${drawn} ${chosen}`);
      await browser.shoot('viewer-large');
    },
    async dark_and_on_a_phone() {
      await browser.media('dark');
      await visit(home);
      await browser.shoot('viewer-dark');
      await browser.call('Emulation.setDeviceMetricsOverride', { width: 390, height: 844, deviceScaleFactor: 2, mobile: true });
      await visit(home);
      assert((await browser.evaluate('document.documentElement.scrollWidth')) <= 390, 'nothing is wider than the screen');
      await browser.shoot('viewer-phone');
      for (const name of ['rules', 'decisions', 'kernels', 'text']) {
        await tab(name);
        assert((await browser.evaluate('document.documentElement.scrollWidth')) <= 390, `${name} is not wider than the screen`);
      }
      await browser.call('Emulation.clearDeviceMetricsOverride');
      await browser.media('light');
    },
  };
}

(async () => {
  const browser = new Browser(program), folder = fs.mkdtempSync(path.join(os.tmpdir(), 'gristmill-viewer-'));
  try {
    await browser.open();
    for (const [name, check] of Object.entries(checks(browser, folder))) {
      const start = Date.now();
      await check();
      if (browser.faults.length) throw new Error(`${name}: ${browser.faults}`);
      console.log(`${name.replaceAll('_', ' ')} passed, ${Date.now() - start} ms`);
    }
    const outside = browser.asked.filter(url => !url.startsWith('file:') && !url.startsWith('about:'));
    if (outside.length) throw new Error(`asked outside: ${outside}`);
    console.log('all passed');
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  } finally {
    fs.rmSync(folder, { recursive: true, force: true });
    await browser.close();
  }
})();
