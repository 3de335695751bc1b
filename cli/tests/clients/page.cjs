// The chat page in a headless Chromium, driven over the DevTools pipe: page.cjs BROWSER HOST:PORT.
// With GRISTMILL_SCREENSHOTS=FOLDER it leaves pictures there.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { setTimeout: sleep } = require('node:timers/promises');

const [browser, address] = process.argv.slice(2);
const home = `http://${address}/`;
const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'gristmill-page-'));
const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--remote-debugging-pipe', '--window-size=1280,860', `--user-data-dir=${profile}`];
const child = spawn(browser, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

const waiting = new Map(), asked = [], faults = [];
let last = 0, held = '', session;
child.stdio[4].on('data', data => {
  const messages = (held + data).split('\0');
  held = messages.pop();
  for (const text of messages) {
    const message = JSON.parse(text);
    if (message.id) {
      const { resolve, reject } = waiting.get(message.id);
      waiting.delete(message.id);
      if (message.error) reject(new Error(message.error.message)); else resolve(message.result);
    } else if (message.method === 'Network.requestWillBeSent') asked.push(message.params.request.url);
    else if (message.method === 'Runtime.exceptionThrown') faults.push(JSON.stringify(message.params.exceptionDetails));
    else if (message.method === 'Log.entryAdded' && message.params.entry.level === 'error') faults.push(message.params.entry.text);
  }
});
const call = (method, params = {}) => new Promise((resolve, reject) => {
  waiting.set(++last, { resolve, reject });
  child.stdio[3].write(JSON.stringify({ id: last, method, params, ...(session ? { sessionId: session } : {}) }) + '\0');
});
async function evaluate(expression) {
  const { result, exceptionDetails } = await call('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
  return result.value;
}
async function until(expression, what = expression) {
  for (const end = Date.now() + 30000; Date.now() < end; await sleep(20)) if (await evaluate(expression)) return;
  throw new Error(`not within 30 s: ${what}; the page says ${await evaluate('document.body.innerText')}`);
}
async function key(name, code, modifiers = 0) {
  for (const type of ['keyDown', 'keyUp']) await call('Input.dispatchKeyEvent', { type, key: name, code: name, windowsVirtualKeyCode: code, text: type === 'keyDown' && name === 'Enter' ? '\r' : undefined, modifiers });
}
async function send(text) {
  await evaluate(`document.getElementById('input').focus()`);
  await call('Input.insertText', { text });
  await key('Enter', 13);
}
const done = () => until(`!running`, 'the answer ends');
const answers = () => evaluate(`[...document.querySelectorAll('.assistant .md')].map(node => node.innerText)`);
async function shoot(name) {
  if (!process.env.GRISTMILL_SCREENSHOTS) return;
  await sleep(250);
  const { data } = await call('Page.captureScreenshot', { format: 'png' });
  fs.writeFileSync(path.join(process.env.GRISTMILL_SCREENSHOTS, `${name}.png`), Buffer.from(data, 'base64'));
}
const SAMPLE = [
  'Here is **bold**, *italic*, ~~struck~~, `code`, a [link](https://example.com) and https://example.org/a_b_c.',
  '## A list', '1. one', '2. two', '   - nested', '   - again', '3. three', '',
  '> A quotation', '', '| format | bits |', '|---|---:|', '| Q4_0 | 4.5 |', '| Q8_0 | 8.5 |', '',
  '```rust', '// The sum of the first n numbers.', 'fn sum(n: u64) -> u64 {', '    let text = "n·(n+1)/2";', '    n * (n + 1) / 2', '}', '```',
].join('\n');
const NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [a](javascript:window.hacked=1) [b](JaVaScRiPt:x) [c](data:text/html,x) ![d](http://evil.example/x.png) <a href="javascript:window.hacked=1">e</a>\n\n```html"><img src=x onerror=window.hacked=1>\n</code><script>window.hacked=1</script>\n```\n| <b>x</b> | y |\n|---|---|\n| <svg onload=window.hacked=1> | z |';

const checks = {
  async open() {
    await until(`document.getElementById('state')?.className === 'up'`);
    assert.strictEqual(await evaluate(`document.getElementById('model').textContent`), 'demo');
    await shoot('empty-light');
    await evaluate(`store.set('settings', { temperature: '0' })`);
  },
  async send_and_stream() {
    await send('What is the capital of Japan?');
    await done();
    assert.deepStrictEqual(await answers(), ['The capital of Japan is Tokyo.']);
    await evaluate(`window.lengths = new Set(); new MutationObserver(() => lengths.add([...document.querySelectorAll('.assistant .md')].at(-1)?.innerText.length)).observe(document.getElementById('log'), { childList: true, subtree: true, characterData: true })`);
    await send('Tell me a story.');
    await done();
    assert(await evaluate(`lengths.size`) > 3, 'the text comes in pieces');
    assert.match(await evaluate(`[...document.querySelectorAll('.stats')].at(-1).textContent`), /\d+ tokens · [\d.]+ tok\/s · prompt \d+/);
    assert.strictEqual(await evaluate(`chats.length`), 1);
    await shoot('conversation-light');
  },
  async stop() {
    await evaluate(`window.plain = window.fetch; window.fetch = (url, options) => plain(url, options?.body ? { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) } : options); 0`);
    await send('Tell me a story.');
    await until(`[...document.querySelectorAll('.assistant .md')].at(-1).innerText.length > 20`);
    await evaluate(`document.getElementById('send').click()`);
    const stopped = (await answers()).at(-1);
    assert.strictEqual(await evaluate(`!!running`), false);
    await sleep(200);
    assert.strictEqual((await answers()).at(-1), stopped, 'nothing comes any more');
    assert.strictEqual(await evaluate(`[...document.querySelectorAll('.muted')].at(-1).textContent`), 'Stopped');
    await until(`fetch('metrics').then(r => r.text()).then(t => /gristmill_requests_running 0/.test(t))`, 'the server has stopped too');
    // With the key too.
    await send('Tell me a story.');
    await until(`running && running.message.content.length > 20`);
    await key('Escape', 27);
    assert.strictEqual(await evaluate(`!!running`), false);
    await evaluate(`window.fetch = plain; 0`);
  },
  async again_and_edit() {
    const before = (await answers()).length;
    await evaluate(`[...document.querySelectorAll('.assistant [title="Answer again"]')].at(-1).click()`);
    await done();
    assert.strictEqual((await answers()).length, before);
    await evaluate(`[...document.querySelectorAll('.user [title=Edit]')][1].click()`);
    await evaluate(`{ const area = document.querySelector('.editor textarea'); area.value = 'What is 17 plus 25?'; document.querySelector('.editor .primary').click(); }`);
    await done();
    assert.deepStrictEqual(await answers(), ['The capital of Japan is Tokyo.', '17 plus 25 is 42.']);
  },
  async reload() {
    await call('Page.reload');
    await until(`document.querySelectorAll('.assistant').length === 2`);
    assert.deepStrictEqual(await answers(), ['The capital of Japan is Tokyo.', '17 plus 25 is 42.']);
    assert.strictEqual(await evaluate(`document.querySelector('.chat.current').innerText`), 'What is the capital of Japan?');
  },
  async several_conversations() {
    await evaluate(`document.getElementById('new').click()`);
    await until(`!document.getElementById('empty').hidden`);
    await evaluate(`document.querySelector('#ideas button').click()`);
    await done();
    assert.strictEqual(await evaluate(`document.querySelectorAll('.chat').length`), 2);
    await evaluate(`document.querySelectorAll('.chat > button')[2].click()`);
    assert.strictEqual((await answers()).length, 2);
    await evaluate(`document.querySelector('.chat.current [title=Delete]').click()`);
    assert.strictEqual(await evaluate(`document.querySelectorAll('.chat').length`), 1);
    await evaluate(`document.querySelector('#toast button').click()`);
    assert.strictEqual(await evaluate(`document.querySelectorAll('.chat').length`), 2);
  },
  async markdown() {
    const show = text => evaluate(`show({ id: 'sample', title: 'Formats', updated: Date.now(), messages: [{ role: 'user', content: 'How many bits does a weight take?' }, { role: 'assistant', content: ${JSON.stringify(text)}, reasoning: 'The user wants a table.', thought: 2300, stats: { tokens: 181, rate: 54.2, prompt: 24 } }] })`);
    await show(SAMPLE);
    const count = selector => evaluate(`document.querySelectorAll('.assistant .md ${selector}').length`);
    const expected = { strong: 1, em: 1, s: 1, 'p code': 1, a: 2, h2: 1, ol: 1, 'ol > li': 3, 'ol ul li': 2, blockquote: 1, 'tbody tr': 2, '.block': 1, '.k': 4, '.c': 1 };
    for (const [selector, n] of Object.entries(expected)) assert.strictEqual(await count(selector), n, selector);
    assert.strictEqual(await evaluate(`document.querySelector('.thought').open`), false, 'reasoning is folded');
    await shoot('markdown-light');
    await call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: 'dark' }] });
    await until(`document.documentElement.dataset.theme === 'dark'`);
    await shoot('markdown-dark');
    await show(NASTY);
    await sleep(100);
    assert.strictEqual(await evaluate(`typeof window.hacked`), 'undefined');
    assert.strictEqual(await count('img') + await count('script') + await count('b') + await count('td svg'), 0);
    assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('.md a')].map(a => a.protocol)`), ['http:']);
  },
  async small_screens() {
    await call('Emulation.setDeviceMetricsOverride', { width: 390, height: 780, deviceScaleFactor: 2, mobile: true });
    await call('Page.reload');
    await until(`document.getElementById('state')?.className === 'up'`);
    assert(await evaluate(`document.documentElement.scrollWidth <= innerWidth`), 'nothing is wider than the screen');
    await shoot('phone-dark');
    await call('Emulation.clearDeviceMetricsOverride');
  },
  async nothing_from_outside() {
    assert.deepStrictEqual(asked.filter(url => !url.startsWith(home) && !url.startsWith('data:')), []);
    assert.deepStrictEqual(faults, []);
  },
};

(async () => {
  const { targetId } = await call('Target.createTarget', { url: 'about:blank' });
  session = (await call('Target.attachToTarget', { targetId, flatten: true })).sessionId;
  for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await call(`${domain}.enable`);
  await call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: 'light' }] });
  await call('Page.navigate', { url: home });
  for (const [name, check] of Object.entries(checks)) {
    await check();
    console.log(name.replaceAll('_', ' '), 'passed');
  }
  console.log('all passed');
})().catch(error => {
  console.error(error);
  process.exitCode = 1;
}).finally(async () => {
  const gone = new Promise(resolve => child.on('exit', resolve));
  child.kill();
  await gone;
  fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
});
