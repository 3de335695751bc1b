// The chat page in a headless Chromium, driven over the DevTools pipe: page.cjs BROWSER HOST:PORT GUARDED:PORT KEY, the latter a server with a key.
// With GRISTMILL_SCREENSHOTS=FOLDER it leaves pictures there.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { setTimeout: sleep } = require('node:timers/promises');

const [browser, address, guarded, password] = process.argv.slice(2);
const home = `http://${address}/`, locked = `http://${guarded}/`;
const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'gristmill-page-'));
// A machine without a mouse has one here: what hovers is shown where something can.
const mouse = '--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4';
const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--remote-debugging-pipe', '--window-size=1280,860', mouse, `--user-data-dir=${profile}`];
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
const type = text => call('Input.insertText', { text });
async function send(text) {
  await evaluate(`document.getElementById('input').focus()`);
  await type(text);
  await key('Enter', 13);
}
const done = () => until(`!running.size`, 'the answer ends');
const click = selector => evaluate(`document.querySelector(${JSON.stringify(selector)}).click()`);
const focused = () => evaluate(`document.activeElement.id || document.activeElement.title || document.activeElement.tagName`);
const idle = () => until(`fetch('metrics').then(r => r.text()).then(t => /gristmill_requests_running 0/.test(t))`, 'the server has stopped too');
// Stories do not end by themselves.
const endless = () => evaluate(`window.plain = window.fetch; window.fetch = (url, options) => plain(url, /story/.test(options?.body) ? { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) } : options); 0`);
const ending = () => evaluate(`window.fetch = plain; 0`);
// What the browser says of a refusal that is meant is no fault.
function excuse(status) {
  for (const text of faults.splice(0)) assert(text.includes(`status of ${status}`), text);
}
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

const FORMATS = [
  ['***both*** **bold *within*** *a*', '<p><em><strong>both</strong></em> <strong>bold <em>within</em></strong> <em>a</em></p>'],
  ['Figures:\n| a | b |\n|---|---|\n| 1 | 2 |', '<p>Figures:</p><div class="wide"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>'],
  ['a | b\n---\nno table', '<p>a | b</p><hr><p>no table</p>'],
  ['The year\n1986. was good', '<p>The year\n1986. was good</p>'],
  ['Steps:\n1. one\n2. two', '<p>Steps:</p><ol start="1" style="--digits: 1;"><li>one</li><li>two</li></ol>'],
  ['998. a\n999. b\n1000. c', '<ol start="998" style="--digits: 4;"><li>a</li><li>b</li><li>c</li></ol>'],
  [String.raw`so \(a_1 * b_2\) and \[x\] or $$y_1*2*z_2$$, 5 \* 3`, String.raw`<p>so <code>\(a_1 * b_2\)</code> and <code>\[x\]</code> or <code>$$y_1*2*z_2$$</code>, 5 * 3</p>`],
  [String.raw`Thus` + '\n\\[\nx\n- y\n= z\n\\]\nholds', '<p>Thus</p><p><code class="apart">\\[\nx\n- y\n= z\n\\]</code></p><p>holds</p>'],
  ['\\[no formula', '<p>[no formula</p>'],
];
const LINKS = [
  ['[a](https://e/a_(b)).', 'https://e/a_(b)', 'a.'], ['[a](<https://e/b> "c")', 'https://e/b', 'a'],
  ['(see https://e/a_(b).)', 'https://e/a_(b)', '(see https://e/a_(b).)'], ['([a](https://e/c))', 'https://e/c', '(a)'],
];
const COLOURED = [['rust', `fn f<'a>(x: &'a str) -> char { '\\'' }`, ['fn', 'str', 'char', `'\\''`]], ['python', `x = 'one'`, [`'one'`]], ['', `let x = "1"`, []]];

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
    await endless();
    await send('Tell me a story.');
    await until(`[...document.querySelectorAll('.assistant .md')].at(-1).innerText.length > 20`);
    await evaluate(`document.getElementById('send').click()`);
    const stopped = (await answers()).at(-1);
    assert.strictEqual(await evaluate(`running.size`), 0);
    await sleep(200);
    assert.strictEqual((await answers()).at(-1), stopped, 'nothing comes any more');
    assert.strictEqual(await evaluate(`[...document.querySelectorAll('.muted')].at(-1).textContent`), 'Stopped');
    await idle();
    // With the key too.
    await send('Tell me a story.');
    await until(`running.get(chat.id)?.message.content.length > 20`);
    await key('Escape', 27);
    assert.strictEqual(await evaluate(`running.size`), 0);
    await ending();
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
  async focus_stays() {
    const pens = `[...document.querySelectorAll('.user [title=Edit]')]`;
    await evaluate(`${pens}[1].click()`);
    await key('Escape', 27);
    assert.strictEqual(await focused(), 'Edit');
    await evaluate(`${pens}[1].click()`);
    await click('.editor .plain');
    assert.strictEqual(await focused(), 'Edit');
    await evaluate(`${pens}[1].click()`);
    await key('Enter', 13);
    assert.strictEqual(await focused(), 'input');
    await done();
    await click('#hide');
    assert.strictEqual(await focused(), 'show');
    await sleep(300);
    for (let i = 0; i < 15; i++) {
      await key('Tab', 9);
      assert.strictEqual(await evaluate(`!!document.activeElement.closest('#side')`), false, 'a hidden panel takes no keys');
    }
    await click('#show');
    assert.strictEqual(await focused(), 'hide');
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
  async several_answers() {
    const text = id => evaluate(`running.get(${JSON.stringify(id)})?.message.content.length ?? -1`);
    const visible = `[...document.querySelectorAll('.assistant .md')].at(-1)?.innerText.length ?? 0`;
    await endless();
    await click('#new');
    await send('Tell me a story.');
    const first = await evaluate(`chat.id`);
    await until(`${visible} > 20`);
    await click('#new');
    assert.strictEqual(await evaluate(`document.getElementById('send').title`), 'Send', 'what stops another is not here');
    await send('What is the capital of Japan?');
    const second = await evaluate(`chat.id`);
    assert.strictEqual(await evaluate(`running.size`), 2);
    assert.strictEqual(await evaluate(`document.querySelectorAll('.chat .busy').length`), 2);
    await shoot('two-answers');
    const before = await text(first);
    await evaluate(`show(running.get(${JSON.stringify(first)}).chat)`);
    await until(`${visible} > ${before + 20}`, 'the first still comes, and is drawn');
    await key('Escape', 27);
    assert.deepStrictEqual(await evaluate(`[...running.keys()]`), [second], 'what is shown stops, and nothing else');
    await evaluate(`show(running.get(${JSON.stringify(second)}).chat)`);
    await done();
    assert.deepStrictEqual(await answers(), ['The capital of Japan is Tokyo.']);
    // Asked anew beside another answer, and deleted while it comes.
    await evaluate(`show(chats.find(one => one.id === ${JSON.stringify(first)}))`);
    await click('.last [title="Answer again"]');
    await until(`${visible} > 20`);
    await evaluate(`show(chats.find(one => one.id === ${JSON.stringify(second)}))`);
    await click('.last [title="Answer again"]');
    assert.strictEqual(await evaluate(`running.size`), 2);
    await evaluate(`[...document.querySelectorAll('.chat')].find(node => node.innerText.startsWith('Tell')).querySelector('[title=Delete]').click()`);
    await done();
    await idle();
    assert.deepStrictEqual(await answers(), ['The capital of Japan is Tokyo.']);
    assert.strictEqual(await evaluate(`store.get('chat.' + ${JSON.stringify(first)}, null)`), null, 'a stream does not bring back what was deleted');
    await ending();
  },
  async title_follows_its_message() {
    await click('.user [title=Edit]');
    await evaluate(`document.querySelector('.editor textarea').value = 'What is 17 plus 25?'`);
    await click('.editor .primary');
    await done();
    assert.strictEqual(await evaluate(`document.querySelector('.chat.current').innerText`), 'What is 17 plus 25?');
  },
  async overrun_has_ways_out() {
    await evaluate(`ask('word '.repeat(4000).trim())`);
    await done();
    excuse(400);
    assert.match(await evaluate(`document.querySelector('.last .notice').innerText`), /does not fit the model's context[^]*Edit the message[^]*New conversation/);
    await shoot('overrun');
    await click('.last .notice button');
    assert.strictEqual(await focused(), 'TEXTAREA');
    await key('Escape', 27);
    await click('.last .notice button:last-child');
    assert.deepStrictEqual(await evaluate(`[chat.messages.length, document.getElementById('input').value.length]`), [0, 19999]);
    await evaluate(`document.getElementById('input').value = ''; 0`);
  },
  async settings() {
    const kept = () => evaluate(`settings().temperature`);
    const change = async (text, end) => {
      await click('#settings');
      await evaluate(`{ const field = document.querySelector('[name=temperature]'); field.focus(); field.select(); }`);
      await type(text);
      await end();
      assert.strictEqual(await evaluate(`document.getElementById('panel').open`), false);
    };
    await change('0.5', () => key('Enter', 13));
    assert.strictEqual(await kept(), '0.5');
    for (const end of [() => click('#close'), () => click('#cancel'), () => key('Escape', 27)]) await change('0.7', end);
    assert.strictEqual(await kept(), '0.5');
    await change('0', () => click('#panel .primary'));
    assert.strictEqual(await kept(), '0');
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
    const drawn = (text, what) => evaluate(`{ const node = el('div'); markdown(node, ${JSON.stringify(text)}); ${what}; }`);
    for (const [text, html] of FORMATS) assert.strictEqual(await drawn(text, 'node.innerHTML'), html);
    for (const [text, ...link] of LINKS) assert.deepStrictEqual(await drawn(text, `[node.querySelector('a').getAttribute('href'), node.textContent]`), link);
    for (const [language, code, marked] of COLOURED) assert.deepStrictEqual(await drawn('```' + language + '\n' + code, `[...node.querySelectorAll('pre span')].map(one => one.innerText)`), marked);
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
    const padding = await evaluate(`{ const node = el('div', { class: 'md' }); markdown(node, '123456789. x'); document.getElementById('log').append(node); parseFloat(getComputedStyle(node.firstChild).paddingLeft); }`);
    assert(padding > 80, `a long number has room: ${padding}`);
    await click('#show');
    assert.strictEqual(await evaluate(`document.querySelector('main').inert`), true, 'the panel lies over the rest');
    await sleep(300);
    await shoot('phone-panel');
    await key('Escape', 27);
    assert.deepStrictEqual([await evaluate(`document.querySelector('main').inert`), await focused()], [false, 'show']);
    await call('Emulation.clearDeviceMetricsOverride');
  },
  async fingers() {
    await evaluate(`show(chats.find(one => one.messages.length > 3))`);
    const faint = () => evaluate(`[...document.querySelectorAll('.chat .icon, .tools')].filter(node => getComputedStyle(node).opacity === '0').length`);
    assert(await faint() > 0, 'a pointer shows them where it is');
    await call('Emulation.setTouchEmulationEnabled', { enabled: true });
    assert.strictEqual(await evaluate(`matchMedia('(hover: none)').matches`), true);
    await until(`[...document.querySelectorAll('.chat .icon, .tools')].every(node => getComputedStyle(node).opacity === '1')`);
    await call('Emulation.setTouchEmulationEnabled', { enabled: false });
  },
  async the_key() {
    const open = `document.getElementById('panel').open`, banner = `!document.getElementById('locked').hidden`, told = `document.getElementById('refusal').innerText`;
    const answer = async text => {
      await evaluate(`document.querySelector('[name=key]').focus()`);
      await type(text);
      await key('Enter', 13);
    };
    await call('Page.navigate', { url: locked });
    await until(`document.getElementById('panel')?.open && document.activeElement.name === 'key'`);
    assert.strictEqual(await evaluate(told), 'The server needs an API key.');
    await key('Escape', 27);
    // It asks the server again every four seconds.
    await sleep(4500);
    assert.deepStrictEqual(await evaluate(`[${open}, ${banner}]`), [false, true], 'what was dismissed stays so');
    await click('#locked button');
    await answer('wrong');
    await until(`${open} && ${told}.includes('does not accept')`);
    await shoot('key-wrong');
    await evaluate(`document.querySelector('[name=key]').select()`);
    await answer(password);
    await until(`document.getElementById('state').className === 'up'`);
    assert.deepStrictEqual(await evaluate(`[${open}, ${banner}]`), [false, false]);
    excuse(401);
  },
  async nothing_from_outside() {
    assert.deepStrictEqual(asked.filter(url => !url.startsWith(home) && !url.startsWith(locked) && !url.startsWith('data:')), []);
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
