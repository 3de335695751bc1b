// The chat page in a headless Chromium: page.cjs BROWSER HOST:PORT GUARDED:PORT KEY [CHECK…], the latter server with a key. Checks are in page/.
// With GRISTMILL_SCREENSHOTS=FOLDER it leaves pictures there.
'use strict';
const { Browser } = require('./page/browser.cjs');
const { Stub } = require('./page/stub.cjs');

const [program, address, guarded, password, ...wanted] = process.argv.slice(2);
const groups = ['talk', 'text', 'formulas', 'conversations', 'frame', 'states'];

(async () => {
  const browser = new Browser(program), stub = new Stub(address);
  try {
    await browser.open();
    const place = { home: `http://${address}/`, locked: `http://${guarded}/`, stub, password };
    for (const group of groups.filter(name => !wanted.length || wanted.includes(name))) {
      const checks = require(`./page/${group}.cjs`)(browser, place);
      for (const [name, check] of Object.entries(checks)) {
        const start = Date.now();
        await check();
        if (browser.faults.length) throw new Error(`${name}: ${browser.faults}`);
        console.log(`${group}: ${name.replaceAll('_', ' ')} passed, ${Date.now() - start} ms`);
      }
    }
    const outside = browser.asked.filter(url => ![place.home, place.locked, stub.url, 'data:', 'blob:', 'about:'].some(own => url.startsWith(own)));
    if (outside.length) throw new Error(`asked outside: ${outside}`);
    console.log('all passed');
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  } finally {
    stub.close();
    await browser.close();
  }
})();
