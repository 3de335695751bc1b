// The page in a headless Chromium: page.cjs BROWSER FOLDER [--device wasm|webgpu] [--expect TEXT] [--least TOK/S] [--open FILE].
// With --open the file is opened as a user opens it, too, and asked the same.
// With GRISTMILL_SCREENSHOTS=FOLDER it leaves pictures there.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { Browser } = require('../../cli/tests/clients/page/browser.cjs');

const { values: options, positionals: [program, folder] } = parseArgs({
  allowPositionals: true,
  options: { expect: { type: 'string' }, least: { type: 'string' }, device: { type: 'string' }, open: { type: 'string' } },
});
const TYPES = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.wasm': 'application/wasm', '.gguf': 'application/octet-stream' };
/* Milliseconds in which the model is opened, and in which an answer ends. */
const LONG = 300000;
/* WebGPU without a GPU: SwiftShader, a Vulkan on the processor. */
const SOFTWARE = ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader', '--enable-features=Vulkan', '--use-vulkan=swiftshader'];

function serve() {
  const server = http.createServer((request, response) => {
    const name = new URL(request.url, 'http://x').pathname.replace(/\/$/, '/index.html');
    const file = path.join(folder, path.normalize(name));
    fs.readFile(file, (error, data) => {
      response.writeHead(error ? 404 : 200, { 'Content-Type': TYPES[path.extname(file)] ?? 'text/plain' });
      response.end(error ? 'not found' : data);
    });
  });
  return new Promise(done => server.listen(0, '127.0.0.1', () => done(server)));
}

(async () => {
  const server = await serve(), browser = new Browser(program, options.device === 'webgpu' ? SOFTWARE : undefined);
  const home = `http://127.0.0.1:${server.address().port}/`;
  const until = async (expression, what) => {
    for (const end = Date.now() + LONG; Date.now() < end; await new Promise(done => setTimeout(done, 100))) {
      if (await browser.evaluate(`document.getElementById('banner')?.className === 'bad'`)) throw new Error(await browser.evaluate(`document.getElementById('banner').innerText`));
      if (browser.faults.length) throw new Error(String(browser.faults));
      if (await browser.evaluate(expression)) return;
    }
    throw new Error(`${what} takes more than ${LONG} ms: ${await browser.evaluate('document.body.innerText')}`);
  };
  const set = (id, value) => browser.evaluate(`document.getElementById(${JSON.stringify(id)}).value = ${JSON.stringify(value)}`);
  const stats = () => browser.evaluate(`Object.fromEntries(Object.entries([...document.querySelectorAll('.stats')].pop().dataset).map(([name, value]) => [name, Number(value)]))`);
  const answers = count => until(`document.querySelectorAll('.stats').length === ${count}`, 'an answer');
  /* Opens a file by the page's field. */
  const opened = async file => {
    const { root } = await browser.call('DOM.getDocument');
    const { nodeId } = await browser.call('DOM.querySelector', { nodeId: root.nodeId, selector: '#file' });
    await browser.call('DOM.setFileInputFiles', { nodeId, files: [file] });
    await until(`document.getElementById('input').disabled === false && document.querySelectorAll('.stats').length === 0`, 'the file');
    console.log(await browser.evaluate(`document.getElementById('facts').innerText`));
    await set('limit', '64');
    await browser.send('Tell me a story.');
    await answers(1);
    const { prompt, prefill, steps, seconds } = await stats();
    console.log(`${path.basename(file)}: prefill ${(prompt / prefill).toFixed(1)} tok/s, decode ${(steps / seconds).toFixed(1)} tok/s of ${steps} steps`);
  };
  try {
    await browser.open();
    await browser.call('Page.navigate', { url: home + (options.device ? `?device=${options.device}` : '') });
    await until(`document.getElementById('input')?.disabled === false`, 'the model');
    console.log(await browser.evaluate(`document.getElementById('facts').innerText`));
    await set('temperature', '0');
    await set('limit', '32');
    await browser.send('Hello');
    await answers(1);
    await browser.shoot('page-light');
    const said = await browser.evaluate(`document.querySelector('.answer .md').innerText`);
    console.log(`answer: ${JSON.stringify(said)}`);
    if (options.expect !== undefined && said.trim() !== options.expect.trim()) throw new Error(`the answer is not ${JSON.stringify(options.expect)}`);
    // Once more, with code that the browser has optimised.
    await set('limit', '200');
    await browser.send('Tell me a story.');
    await answers(2);
    const { prompt, prefill, steps, seconds } = await stats();
    console.log(`prefill ${(prompt / prefill).toFixed(1)} tok/s, decode ${(steps / seconds).toFixed(1)} tok/s of ${steps} steps`);
    if (options.least && steps / seconds < Number(options.least)) throw new Error(`slower than ${options.least} tok/s`);
    await set('limit', '100000');
    await browser.send('Tell me another story.');
    await until(`[...document.querySelectorAll('.answer .md')].pop().innerText.length > 0`, 'a word');
    await browser.click('#stop');
    await answers(3);
    await browser.media('dark');
    await browser.shoot('page-dark');
    if (options.open) await opened(path.resolve(options.open));
    const outside = browser.asked.filter(url => ![home, 'data:', 'blob:', 'about:'].some(own => url.startsWith(own)));
    if (outside.length) throw new Error(`asked outside: ${outside}`);
    console.log('all passed');
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  } finally {
    server.close();
    await browser.close();
  }
})();
