// A headless Chromium with one page, driven over the DevTools pipe.
'use strict';
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { spawn } = require('node:child_process');
const { setTimeout: sleep } = require('node:timers/promises');

// A machine without a mouse has one here: what hovers is shown where something can.
const MOUSE = '--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4';
// What the checks look at of the page's modules.
const MODULES = ['answers', 'chats', 'context', 'conversation', 'dom', 'ideas', 'markdown', 'portable', 'request', 'server', 'store', 'tex/parse'];
const CODES = { Enter: 13, Escape: 27, Tab: 9, ArrowUp: 38, ArrowDown: 40, ArrowLeft: 37, ArrowRight: 39, Delete: 46, F2: 113 };
const MODIFIERS = { Alt: 1, Ctrl: 2, Meta: 4, Shift: 8 };

class Browser {
  constructor(program, more = ['--disable-gpu']) {
    this.profile = fs.mkdtempSync(path.join(os.tmpdir(), 'gristmill-page-'));
    const flags = ['--headless=new', '--no-sandbox', ...more, '--no-first-run', '--remote-debugging-pipe', '--window-size=1280,860', MOUSE, `--user-data-dir=${this.profile}`];
    this.child = spawn(program, flags, { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'], detached: true });
    Object.assign(this, { waiting: new Map(), asked: [], faults: [], last: 0, held: '' });
    this.child.stdio[4].on('data', data => this.read(data));
  }
  read(data) {
    const messages = (this.held + data).split('\0');
    this.held = messages.pop();
    for (const text of messages) {
      const message = JSON.parse(text);
      if (message.id) {
        const { resolve, reject } = this.waiting.get(message.id);
        this.waiting.delete(message.id);
        if (message.error) reject(new Error(message.error.message)); else resolve(message.result);
      } else if (message.method === 'Network.requestWillBeSent') this.asked.push(message.params.request.url);
      else if (message.method === 'Runtime.exceptionThrown') this.faults.push(JSON.stringify(message.params.exceptionDetails));
      else if (message.method === 'Log.entryAdded' && message.params.entry.level === 'error') this.faults.push(message.params.entry.text);
    }
  }
  call(method, params = {}) {
    return new Promise((resolve, reject) => {
      this.waiting.set(++this.last, { resolve, reject });
      this.child.stdio[3].write(JSON.stringify({ id: this.last, method, params, ...(this.session ? { sessionId: this.session } : {}) }) + '\0');
    });
  }
  async open() {
    const { targetId } = await this.call('Target.createTarget', { url: 'about:blank' });
    this.session = (await this.call('Target.attachToTarget', { targetId, flatten: true })).sessionId;
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await this.call(`${domain}.enable`);
    await this.media('light');
  }
  media(scheme, motion = 'no-preference') {
    return this.call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }, { name: 'prefers-reduced-motion', value: motion }] });
  }
  /* Goes to an address, or comes back to where it is; then the names that the page's modules give away are known to `evaluate`. */
  async visit(url, ready = `document.getElementById('state')?.className === 'up'`) {
    await (url ? this.call('Page.navigate', { url }) : this.call('Page.reload'));
    await this.until(`document.readyState === 'complete' && !!document.getElementById('state')`);
    await this.evaluate(`Promise.all(${JSON.stringify(MODULES)}.map(name => import('./page/' + name + '.js'))).then(modules => { for (const module of modules) for (const name of Object.keys(module)) window[name] = module[name]; })`);
    await this.until(ready);
  }
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.call('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression.slice(0, 300)}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }
  async until(expression, what = expression) {
    let fault;
    for (const end = Date.now() + 30000; Date.now() < end; await sleep(20)) {
      // Between two documents there is nothing to ask.
      try { if (await this.evaluate(expression)) return; } catch (error) { fault = error; }
    }
    throw new Error(`not within 30 s: ${what}; ${fault ?? ''} the page says ${await this.evaluate('document.body.innerText')}`);
  }
  /* Presses a key, "Ctrl+Shift+O" with others held. */
  async key(name) {
    const held = name.split('+'), key = held.pop(), modifiers = held.reduce((sum, one) => sum + MODIFIERS[one], 0);
    const code = CODES[key] ? key : key.length === 1 && /[A-Z]/.test(key) ? `Key${key}` : key;
    for (const type of ['keyDown', 'keyUp']) {
      const text = type === 'keyDown' && !modifiers ? (key === 'Enter' ? '\r' : key.length === 1 ? key : undefined) : undefined;
      await this.call('Input.dispatchKeyEvent', { type, key, code, windowsVirtualKeyCode: CODES[key] ?? key.charCodeAt(0), text, modifiers });
    }
  }
  type(text) { return this.call('Input.insertText', { text }); }
  click(selector) { return this.evaluate(`document.querySelector(${JSON.stringify(selector)}).click()`); }
  focused() { return this.evaluate(`document.activeElement.id || document.activeElement.title || document.activeElement.tagName`); }
  async send(text) {
    await this.evaluate(`document.getElementById('input').focus()`);
    await this.type(text);
    await this.key('Enter');
  }
  done() { return this.until('!running.size', 'the answer ends'); }
  answers() { return this.evaluate(`[...document.querySelectorAll('.assistant .md')].map(node => node.innerText)`); }
  /* What the browser says of a refusal that is meant is no fault. */
  excuse(pattern) {
    for (const text of this.faults.splice(0)) if (!pattern.test(text)) throw new Error(text);
  }
  async shoot(name) {
    if (!process.env.GRISTMILL_SCREENSHOTS) return;
    await sleep(300);
    const { data } = await this.call('Page.captureScreenshot', { format: 'png' });
    fs.writeFileSync(path.join(process.env.GRISTMILL_SCREENSHOTS, `${name}.png`), Buffer.from(data, 'base64'));
  }
  async close() {
    const gone = new Promise(resolve => this.child.on('exit', resolve));
    // Asked to end, it sometimes does not. Its other processes, of its group, write into the profile until they
    // are gone too, which nobody tells: a folder that is not empty yet is tried again.
    process.kill(-this.child.pid, 'SIGKILL');
    await gone;
    for (let tries = 100; ; tries--) {
      try {
        return fs.rmSync(this.profile, { recursive: true, force: true });
      } catch (error) {
        if (error.code !== 'ENOTEMPTY' || !tries) throw error;
        await sleep(50);
      }
    }
  }
}
module.exports = { Browser, sleep };
