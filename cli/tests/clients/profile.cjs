// The page of `gristmill profile --html` in a headless Chromium: profile.cjs BROWSER FILE.
'use strict';
const assert = require('node:assert');
const { pathToFileURL } = require('node:url');
const { Browser } = require('./page/browser.cjs');

const [program, file] = process.argv.slice(2);

(async () => {
  const browser = new Browser(program);
  try {
    await browser.open();
    for (const [width, height] of [[1280, 900], [390, 844]]) {
      await browser.call('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 800 });
      await browser.call('Page.navigate', { url: 'about:blank' });
      await browser.call('Page.navigate', { url: pathToFileURL(file).href });
      await browser.until(`document.readyState === 'complete' && document.querySelectorAll('#kernels tr.row').length > 5`);
      assert((await browser.evaluate('document.documentElement.scrollWidth')) <= width, 'nothing is wider than the screen');
      // Kernels are named by what they do; a name lies over no other and within the drawing.
      const names = await browser.evaluate(`[...document.querySelectorAll('#kernels tr.row td:first-child')].map(cell => cell.innerText.trim())`);
      assert(names.some(name => name.includes('ffn_gate')) && names.every(name => !/^\w+\.one \d/.test(name)), names.join('\n'));
      const overlaps = await browser.evaluate(`(() => {
        const all = [...document.querySelectorAll('#roofline .name')].map(node => node.getBoundingClientRect()), svg = document.getElementById('roofline').getBoundingClientRect();
        const over = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
        return all.flatMap((a, i) => all.slice(i + 1).filter(b => over(a, b))).length + all.filter(a => a.left < svg.left || a.right > svg.right).length;
      })()`);
      assert.strictEqual(overlaps, 0);
      // What was measured and what the cost model says are told apart.
      await browser.click('#kernels tr.row');
      assert.match(await browser.evaluate(`document.querySelector('.detail .facts').innerText`), /s measured[^]*s modelled/);
      await browser.shoot(`profile-${width}`);
    }
    if (browser.faults.length) throw new Error(browser.faults.join('\n'));
    const outside = browser.asked.filter(url => !url.startsWith('file:') && !url.startsWith('about:'));
    if (outside.length) throw new Error(`asked outside: ${outside}`);
    console.log('all passed');
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  } finally {
    await browser.close();
  }
})();
