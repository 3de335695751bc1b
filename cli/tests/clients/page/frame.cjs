// The frame: dialogs, keys, screens of all sizes, colours.
'use strict';
const assert = require('node:assert');
const { sleep } = require('./browser.cjs');

// Text on its ground, and edges of fields on theirs, by the names of the style sheet: WCAG 2.2 asks for 4.5 and 3.
const TEXTS = [['ink', 'paper'], ['ink', 'panel'], ['ink', 'bubble'], ['ink', 'code'], ['ink', 'raised'], ['soft', 'paper'], ['soft', 'panel'], ['faint', 'paper'], ['faint', 'panel'], ['faint', 'raised'], ['faint', 'code'], ['accent', 'paper'], ['accent', 'raised'], ['accent-ink', 'accent'], ['bad', 'bad-wash'], ['bad', 'paper'], ['ink', 'accent-wash'], ['soft', 'accent-wash'], ['tok-k', 'code'], ['tok-s', 'code'], ['tok-n', 'code'], ['tok-c', 'code'], ['paper', 'ink']];
const EDGES = [['field', 'paper'], ['field', 'raised'], ['accent', 'paper'], ['accent', 'raised'], ['accent', 'panel'], ['good', 'paper']];
function luminance(colour) {
  const hex = colour.trim().replace('#', ''), wide = hex.length === 3 ? [...hex].map(one => one + one).join('') : hex;
  const [r, g, b] = [0, 2, 4].map(at => parseInt(wide.slice(at, at + 2), 16) / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(one, other) {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
}

module.exports = (b, { home, locked, password }) => {
  const { evaluate, until, click, key } = Object.fromEntries(['evaluate', 'until', 'click', 'key'].map(name => [name, b[name].bind(b)]));
  const opacities = () => evaluate(`[...document.querySelectorAll('.chat .icon, .tools')].map(node => getComputedStyle(node).opacity)`);
  return {
    async settings_of_a_conversation() {
      await b.visit(home);
      await evaluate(`localStorage.clear(); store.set('settings', { temperature: '0' })`);
      await b.visit();
      const kept = () => evaluate(`state.chat.settings`);
      const change = async (name, text, end) => {
        await click('#tuning');
        await evaluate(`{ const field = document.querySelector('#tune [name=${name}]'); field.focus(); field.select(); }`);
        await b.type(text);
        await end();
        assert.strictEqual(await evaluate(`document.getElementById('tune').open`), false);
      };
      await change('temperature', '0.5', () => key('Enter'));
      await change('system', 'You are a miller.', () => click('#tune .primary'));
      assert.deepStrictEqual(await kept(), { system: 'You are a miller.', temperature: '0.5' });
      for (const end of [() => click('#tune-close'), () => click('#tune footer [data-close]'), () => key('Escape')]) await change('temperature', '0.7', end);
      assert.deepStrictEqual(await kept(), { system: 'You are a miller.', temperature: '0.5' });
      assert.deepStrictEqual(await evaluate(`(({ messages, temperature, top_k, seed }) => ({ messages, temperature, top_k, seed }))(request({ settings: { system: 'S', temperature: '0.5', top_k: '40', seed: '7' } }, [{ role: 'user', content: 'Q' }]))`), { messages: [{ role: 'system', content: 'S' }, { role: 'user', content: 'Q' }], temperature: 0.5, top_k: 40, seed: 7 });
      await b.shoot('tune');
      // Another conversation begins as the last one that was made the rule.
      await b.send('What is the capital of Japan?');
      await b.done();
      await click('#new');
      assert.deepStrictEqual(await kept(), { temperature: '0' });
      await click('#tuning');
      await b.type('Be brief.');
      await click('#tune [name=default]');
      await b.shoot('tune-open');
      await click('#tune .primary');
      await b.send('What is the capital of Japan?');
      await b.done();
      await click('#new');
      assert.deepStrictEqual(await kept(), { system: 'Be brief.', temperature: '0' });
      await evaluate(`store.set('settings', { temperature: '0' })`);
    },
    async names_of_settings() {
      await click('#tuning');
      const labels = await evaluate(`[...document.querySelectorAll('#tune label:not(.check)')].map(node => node.firstChild.textContent)`);
      for (const name of ['System prompt', 'Temperature', 'Max tokens']) assert(labels.includes(name), `${name} of ${labels}`);
      for (const [name, value] of [['system', 'S'], ['max_tokens', '5'], ['top_k', '2'], ['thinking', 'on']]) await evaluate(`document.querySelector('#tune [name=${name}]').value = '${value}'`);
      assert.strictEqual(await evaluate(`document.getElementById('reset').innerText`), 'Default');
      await click('#reset');
      assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('#tune [name]:not([type=checkbox])')].filter(field => field.value).length`), 0);
      assert.deepStrictEqual(await evaluate(`[...new Set([...document.querySelectorAll('#tune input:not([type=checkbox])')].map(field => field.placeholder))]`), ['Default']);
      await click('#tune .primary');
      assert.deepStrictEqual(await evaluate(`state.chat.settings`), {});
      await evaluate(`begin(); state.chat.settings = { temperature: '0' }`);
    },
    async what_a_model_may_begin_with() {
      const kinds = { 'SmolLM2-135M-Instruct': 'chat', 'gemma-3-1b-it': 'chat', 'gemma-3-1b-pt': 'base', 'Llama-3.2-1B-base': 'base', 'Qwen2.5-Coder-7B-Instruct': 'code', 'codestral-22b': 'code', 'starcoder2-3b': 'code-base', 'Qwen2.5-Coder-1.5B-Base': 'code-base', demo: 'chat' };
      assert.deepStrictEqual(await evaluate(`Object.fromEntries(${JSON.stringify(Object.keys(kinds))}.map(id => [id, kindOf(id)]))`), kinds);
      assert.deepStrictEqual(await evaluate(`Object.keys(IDEAS).sort().join() === Object.keys(KINDS).sort().join()`), true);
    },
    async keys_do_everything() {
      await key('Ctrl+Shift+O');
      assert.deepStrictEqual([await b.focused(), await evaluate(`state.chat.messages.length`)], ['input', 0]);
      await b.send('What is 17 plus 25?');
      await b.done();
      await key('ArrowUp');
      assert.strictEqual(await b.focused(), 'TEXTAREA', 'the last message is edited');
      await key('Escape');
      assert.strictEqual(await b.focused(), 'Edit');
      await key('/');
      assert.strictEqual(await b.focused(), 'input');
      assert.strictEqual(await evaluate(`document.getElementById('input').value`), '');
      const at = () => evaluate(`state.chats.indexOf(state.chat)`);
      await key('Alt+ArrowDown');
      assert.strictEqual(await at(), 1);
      await key('Alt+ArrowUp');
      assert.strictEqual(await at(), 0);
      await key('Ctrl+Shift+E');
      assert.strictEqual(await evaluate(`document.getElementById('tune').open`), true);
      await key('Escape');
      await key('Ctrl+Shift+S');
      assert.strictEqual(await b.focused(), 'show');
      await sleep(300);
      for (let i = 0; i < 12; i++) {
        await key('Tab');
        assert.strictEqual(await evaluate(`!!document.activeElement.closest('#side')`), false, 'a hidden panel takes no keys');
      }
      await key('Ctrl+K');
      assert.strictEqual(await b.focused(), 'search');
      await evaluate(`document.getElementById('theme').focus()`);
      await key('?');
      assert.strictEqual(await evaluate(`document.getElementById('keys').open`), true);
      await b.shoot('keys');
      await key('Escape');
    },
    async focus_order() {
      await evaluate(`document.getElementById('skip').focus()`);
      const order = [await b.focused()];
      while (order.at(-1) !== 'input' && order.length < 60) {
        await key('Tab');
        order.push(await b.focused());
        const shown = await evaluate(`(node => { const { outlineStyle, outlineWidth } = getComputedStyle(node), ring = outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2; return ring || !!node.closest('#composer, #find'); })(document.activeElement)`);
        assert(shown, `${order.at(-1)} shows that it has the keyboard`);
      }
      const places = ['skip', 'hide', 'new', 'search', 'theme', 'settings', 'tuning', 'attach', 'input'].map(name => order.indexOf(name));
      assert(places.every((place, i) => place >= 0 && (i === 0 || place > places[i - 1])), order.join(' '));
    },
    async names_for_all() {
      const nameless = await evaluate(`[...document.querySelectorAll('button, input, select, textarea, progress')].filter(node => !node.closest('[hidden]') && !(node.getAttribute('aria-label') || node.innerText || node.labels?.length || node.getAttribute('aria-hidden') || node.type === 'file')).map(node => node.outerHTML)`);
      assert.deepStrictEqual(nameless, []);
      assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('[id]')].map(node => node.id).filter((id, i, all) => all.indexOf(id) !== i)`), [], 'an id is one thing');
    },
    async colours_can_be_told_apart() {
      for (const scheme of ['light', 'dark']) {
        await b.media(scheme);
        await until(`document.documentElement.dataset.theme === '${scheme}'`);
        const names = [...new Set([...TEXTS, ...EDGES].flat())];
        const values = await evaluate(`(style => Object.fromEntries(${JSON.stringify(names)}.map(name => [name, style.getPropertyValue('--' + name)])))(getComputedStyle(document.documentElement))`);
        for (const [pairs, least] of [[TEXTS, 4.5], [EDGES, 3]]) for (const [one, other] of pairs) {
          const found = contrast(values[one], values[other]);
          assert(found >= least, `${scheme}: ${one} on ${other} has ${found.toFixed(2)}`);
        }
      }
      await b.media('light');
    },
    async still_where_that_is_asked_for() {
      await b.media('light', 'reduce');
      const moving = await evaluate(`{ const node = el('div', { class: 'waiting' }, el('span', { class: 'dots' }, el('i')), el('progress')); document.getElementById('log').append(node); const found = [...node.querySelectorAll('*'), document.getElementById('side')].filter(one => getComputedStyle(one).animationName !== 'none' || parseFloat(getComputedStyle(one).transitionDuration) > 0).length; node.remove(); found; }`);
      assert.strictEqual(moving, 0);
      await b.media('light');
    },
    async small_screens() {
      await b.call('Emulation.setDeviceMetricsOverride', { width: 390, height: 844, deviceScaleFactor: 2, mobile: true });
      await b.visit();
      const wide = '| a | b | c | d | e | f |\n|---|---|---|---|---|---|\n| ' + 'some words here | '.repeat(6) + `\n\n# A heading with averyveryveryverylongwordthathasnoplacetobreak\n\n\\[${'x+'.repeat(80)}y\\]\n\n\`\`\`\n${'long '.repeat(60)}\n\`\`\``;
      await evaluate(`show(revive({ id: 'wide', title: 'Wide', messages: [{ role: 'user', content: ${JSON.stringify('x'.repeat(300))} }, { role: 'assistant', content: ${JSON.stringify(wide)} }] }))`);
      assert(await evaluate(`document.documentElement.scrollWidth <= innerWidth && document.getElementById('scroll').scrollWidth <= innerWidth`), 'nothing is wider than the screen');
      for (const selector of ['.wide', '.formula', '.block pre']) assert(await evaluate(`(node => node.scrollWidth > node.clientWidth)(document.querySelector('${selector}'))`), `${selector} scrolls by itself`);
      const padding = await evaluate(`{ const node = el('div', { class: 'md' }); markdown(node, '123456789. x'); document.getElementById('log').append(node); parseFloat(getComputedStyle(node.firstChild).paddingLeft); }`);
      assert(padding > 80, `a long number has room: ${padding}`);
      await click('#show');
      assert.strictEqual(await evaluate(`document.querySelector('main').inert`), true, 'the panel lies over the rest');
      await sleep(300);
      await b.shoot('phone-panel');
      await key('Escape');
      assert.deepStrictEqual([await evaluate(`document.querySelector('main').inert`), await b.focused()], [false, 'show']);
      await click('#tuning');
      assert(await evaluate(`(box => box.left >= 0 && box.right <= innerWidth && box.bottom <= innerHeight)(document.getElementById('tune').getBoundingClientRect())`), 'a dialog is on the screen');
      await b.shoot('phone-tune');
      await key('Escape');
      await b.call('Emulation.clearDeviceMetricsOverride');
    },
    async fingers() {
      await evaluate(`show(state.chats.find(one => one.messages.length > 1))`);
      assert((await opacities()).includes('0'), 'a pointer shows them where it is');
      await b.call('Emulation.setTouchEmulationEnabled', { enabled: true });
      assert.strictEqual(await evaluate(`matchMedia('(hover: none)').matches`), true);
      await until(`[...document.querySelectorAll('.chat .icon, .tools')].every(node => getComputedStyle(node).opacity === '1')`);
      const small = await evaluate(`[...document.querySelectorAll('button.icon')].filter(node => node.offsetParent && (node.offsetWidth < 24 || node.offsetHeight < 24)).length`);
      assert.strictEqual(small, 0, 'a finger finds every button');
      await b.call('Emulation.setTouchEmulationEnabled', { enabled: false });
    },
    async no_ring_around_a_part() {
      await b.call('Emulation.setTouchEmulationEnabled', { enabled: true });
      await b.call('Emulation.setFocusEmulationEnabled', { enabled: true });
      await b.visit();
      assert.strictEqual(await b.focused(), 'scroll', 'a finger gets no keyboard of the screen');
      assert.deepStrictEqual(await evaluate(`[document.querySelector(':focus').id, getComputedStyle(document.activeElement).outlineStyle]`), ['scroll', 'none']);
      await click('#tuning');
      assert.deepStrictEqual(await evaluate(`[document.getElementById('tune').open, /INPUT|TEXTAREA/.test(document.activeElement.tagName)]`), [true, false]);
      await key('Escape');
      assert.strictEqual(await evaluate(`getComputedStyle(document.documentElement).webkitTapHighlightColor`), 'rgba(0, 0, 0, 0)');
      await b.call('Emulation.setTouchEmulationEnabled', { enabled: false });
    },
    async the_key() {
      const open = `document.getElementById('panel').open`, banner = `!document.getElementById('banner').hidden`, told = `document.getElementById('refusal').innerText`;
      const answer = async text => {
        await evaluate(`document.querySelector('[name=key]').focus()`);
        await b.type(text);
        await key('Enter');
      };
      await b.visit(locked, `document.getElementById('panel')?.open && document.activeElement.name === 'key'`);
      assert.strictEqual(await evaluate(told), 'The server needs an API key.');
      await key('Escape');
      // As its clock asks the server again, every four seconds.
      await evaluate(`connect()`);
      assert.deepStrictEqual(await evaluate(`[${open}, ${banner}]`), [false, true], 'what was dismissed stays so');
      await click('#unlock');
      await answer('wrong');
      await until(`${open} && ${told}.includes('does not accept')`);
      await b.shoot('key-wrong');
      await evaluate(`document.querySelector('[name=key]').select()`);
      await answer(password);
      await until(`document.getElementById('state').className === 'up'`);
      assert.deepStrictEqual(await evaluate(`[${open}, ${banner}]`), [false, false]);
      b.excuse(/status of 401/);
    },
  };
};
