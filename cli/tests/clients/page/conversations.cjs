// The list of conversations: names, search, files.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { sleep } = require('./browser.cjs');

module.exports = (b, { home }) => {
  const { evaluate, until, click, key } = Object.fromEntries(['evaluate', 'until', 'click', 'key'].map(name => [name, b[name].bind(b)]));
  const titles = () => evaluate(`[...document.querySelectorAll('.chat .open > span')].map(node => node.innerText)`);
  const menu = async (title, entry) => {
    await evaluate(`[...document.querySelectorAll('.chat')].find(node => node.innerText.startsWith(${JSON.stringify(title)})).querySelector('[aria-haspopup]').click()`);
    if (entry) await evaluate(`[...document.querySelectorAll('#menu button')].find(node => node.innerText === ${JSON.stringify(entry)}).click()`);
  };
  const put = (id, title, content, updated) => `save(Object.assign(revive({ id: '${id}', title: '${title}', messages: [{ role: 'user', content: '${content}' }, { role: 'assistant', content: 'An answer.' }] }), {}), false); state.chats.find(one => one.id === '${id}').updated = ${updated};`;
  const open = async () => {
    await b.visit(home);
    await evaluate(`localStorage.clear()`);
    await b.visit();
    await evaluate(`${put('a', 'Water wheels', 'How does an overshot wheel work?', 'Date.now()')} ${put('b', 'Bread', 'How much rye?', 'Date.now() - 864e5')} ${put('c', 'Stones', 'Which granite is good for <b>grinding</b>?', '1e12')} for (const one of state.chats) save(one, false); show(state.chats[0])`);
  };
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'gristmill-files-'));
  const file = async name => {
    const at = path.join(folder, name);
    for (const end = Date.now() + 10000; Date.now() < end && !fs.existsSync(at); await sleep(20));
    return JSON.parse(fs.readFileSync(at, 'utf8'));
  };
  const importing = async text => {
    await evaluate(`{ document.getElementById('toast').hidden = true; const data = new DataTransfer(); data.items.add(new File([${JSON.stringify(text)}], 'x.json')); const field = document.getElementById('import-file'); field.files = data.files; field.dispatchEvent(new Event('change')); }`);
    await until(`!document.getElementById('toast').hidden`);
    return evaluate(`document.querySelector('#toast span').innerText`);
  };
  return {
    async list_and_search() {
      await open();
      assert.deepStrictEqual(await titles(), ['Water wheels', 'Bread', 'Stones']);
      assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('#chats h2')].map(node => node.innerText)`), ['Today', 'Yesterday', 'Earlier']);
      await key('Ctrl+K');
      await b.type('GRANITE');
      assert.deepStrictEqual(await titles(), ['Stones']);
      assert.deepStrictEqual(await evaluate(`[document.querySelector('.chat mark').innerText, document.querySelector('.chat small').innerText]`), ['granite', 'Which granite is good for <b>grinding</b>…']);
      await b.shoot('search');
      await key('Enter');
      assert.strictEqual(await evaluate(`state.chat.title`), 'Stones');
      await evaluate(`document.getElementById('search').focus()`);
      await b.type('x');
      assert.deepStrictEqual([await titles(), await evaluate(`document.getElementById('nothing').hidden`)], [[], false]);
      await key('Escape');
      assert.strictEqual((await titles()).length, 3);
      await key('ArrowDown');
      await key('ArrowDown');
      assert.strictEqual(await evaluate(`document.activeElement.innerText`), 'Bread');
    },
    async rename() {
      await key('F2');
      assert.strictEqual(await evaluate(`document.activeElement.className`), 'name');
      await b.type('Rye bread');
      await key('Enter');
      assert.deepStrictEqual([await titles(), await evaluate(`document.activeElement.innerText`)], [['Water wheels', 'Rye bread', 'Stones'], 'Rye bread']);
      await menu('Rye', 'Rename');
      await b.type('Not');
      // An answer elsewhere draws the list anew.
      await evaluate(`save(state.chats[2], false); dispatchEvent(new StorageEvent('storage', { key: 'gristmill.chat.c', newValue: 'x' }))`);
      await b.type('hing');
      assert.strictEqual(await evaluate(`document.activeElement.value`), 'Nothing', 'what is typed stays');
      await key('Escape');
      assert.deepStrictEqual(await evaluate(`store.get('chat.b').title`), 'Rye bread');
      await b.visit();
      assert.deepStrictEqual(await titles(), ['Water wheels', 'Rye bread', 'Stones'], 'a name does not make it the latest');
    },
    async menus_by_keys() {
      await evaluate(`document.querySelector('.chat [aria-haspopup]').focus()`);
      await key('Enter');
      assert.strictEqual(await evaluate(`document.activeElement.innerText`), 'Rename');
      await key('ArrowDown');
      await key('ArrowDown');
      assert.strictEqual(await evaluate(`document.activeElement.innerText`), 'Delete');
      await b.shoot('menu');
      await key('Escape');
      assert.deepStrictEqual(await evaluate(`[document.getElementById('menu').hidden, document.activeElement.title.startsWith('Options'), document.activeElement.getAttribute('aria-expanded')]`), [true, true, 'false']);
    },
    async delete_and_undo() {
      await menu('Water', 'Delete');
      assert.deepStrictEqual(await titles(), ['Rye bread', 'Stones']);
      assert.strictEqual(await evaluate(`store.get('chat.a', null)`), null);
      await click('#toast button');
      assert.deepStrictEqual([await titles(), await evaluate(`state.chat.id`)], [['Water wheels', 'Rye bread', 'Stones'], 'a']);
    },
    async export_and_import() {
      await b.call('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: folder });
      await menu('Stones', 'Export');
      const one = await file('Stones.json');
      assert.deepStrictEqual([one.format, one.version, one.conversations.map(chat => chat.title), one.conversations[0].messages[0].content], ['gristmill-conversations', 1, ['Stones'], 'Which granite is good for <b>grinding</b>?']);
      await click('#settings');
      await b.shoot('settings');
      await click('#export');
      const all = JSON.stringify(await file('gristmill-conversations.json'));
      await key('Escape');
      assert.strictEqual(await importing(all), '0 conversations imported', 'what is there is not there twice');
      await evaluate(`localStorage.clear()`);
      await b.visit();
      assert.deepStrictEqual(await titles(), []);
      assert.strictEqual(await importing(all), '3 conversations imported');
      assert.deepStrictEqual(await titles(), ['Water wheels', 'Rye bread', 'Stones']);
      await evaluate(`append(state.chats[0], path(state.chats[0]).at(-1), { role: 'user', content: 'More' }); save(state.chats[0], false)`);
      assert.strictEqual(await importing(all), '1 conversation imported', 'one that went on stays beside the other');
      await b.visit();
      assert.strictEqual(await evaluate(`state.chats.filter(one => one.title === 'Water wheels').map(one => one.messages.length).sort().join()`), '2,3');
    },
    async files_that_are_none_change_nothing() {
      const before = await evaluate(`JSON.stringify({ ...localStorage })`), frame = conversations => JSON.stringify({ format: 'gristmill-conversations', version: 1, conversations });
      const message = { id: 0, parent: null, role: 'user', content: 'x' };
      const bad = ['', '[]', '{"format":"gristmill-conversations"}', frame([{}]), frame([{ id: 'x', messages: [{ ...message, parent: 0 }] }]), frame([{ id: 'x', messages: [message, message] }]), frame([{ id: 'x', messages: Array.from({ length: 5001 }, (_, id) => ({ ...message, id })) }]), frame([{ id: 'x', messages: [{ ...message, role: 'system' }] }]), frame([{ id: 'x', messages: [{ ...message, content: { a: 1 } }] }]), JSON.stringify({ format: 'gristmill-conversations', version: 2, conversations: [] })];
      for (const text of bad) assert.match(await importing(text), /This file|A conversation of this file/, text);
      assert.strictEqual(await evaluate(`JSON.stringify({ ...localStorage })`), before);
      const odd = await evaluate(`revive({ id: 'x', title: 5, settings: { system: 'S', evil: 1, temperature: { a: 1 } }, messages: [{ role: 'user', content: 'x', error: 7, html: '<b>', files: [{ name: 'a', text: 'b', more: 1 }, 5] }], head: 99, __proto__: 1 })`);
      assert.deepStrictEqual([odd.title, odd.settings, odd.head, odd.messages[0]], ['', { system: 'S' }, 0, { id: 0, parent: null, role: 'user', content: 'x', files: [{ name: 'a', text: 'b' }] }]);
    },
    async what_an_older_page_kept() {
      await evaluate(`localStorage.clear(); localStorage.setItem('gristmill.settings', JSON.stringify({ temperature: '0', system: 'S', key: 'k' })); localStorage.setItem('gristmill.chat.old', JSON.stringify({ id: 'old', title: 'Old', updated: 1, messages: [{ role: 'user', content: 'Q' }, { role: 'assistant', content: 'A', stats: { tokens: 3, rate: 2, prompt: 5 } }] }))`);
      await b.visit();
      await evaluate(`show(state.chats[0])`);
      assert.deepStrictEqual([await b.answers(), await evaluate(`state.chat.settings`), await evaluate(`window.key()`)], [['A'], { system: 'S', temperature: '0' }, 'k']);
      await evaluate(`localStorage.clear()`);
      fs.rmSync(folder, { recursive: true, force: true });
    },
    async two_windows() {
      await b.visit();
      const { targetId } = await b.call('Target.createTarget', { url: home });
      await evaluate(`show(revive({ id: 'w', title: 'Mine', messages: [{ role: 'user', content: 'Q' }] })); save(state.chat, false)`);
      const other = (await b.call('Target.attachToTarget', { targetId, flatten: true })).sessionId, first = b.session;
      b.session = other;
      await until(`!!document.querySelector('.chat')`);
      await b.call('Runtime.evaluate', { expression: `localStorage.setItem('gristmill.chat.w', localStorage.getItem('gristmill.chat.w').replace('Mine', 'Theirs'))` });
      await b.call('Target.closeTarget', { targetId });
      b.session = first;
      await until(`document.querySelector('.chat').innerText === 'Theirs'`);
      await evaluate(`localStorage.clear()`);
    },
  };
};
