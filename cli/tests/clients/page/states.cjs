// The states of a server, and of an answer, that a healthy server does not show: a stub plays them.
'use strict';
const assert = require('node:assert');

module.exports = (b, { stub }) => {
  const { evaluate, until, click, key } = Object.fromEntries(['evaluate', 'until', 'click', 'key'].map(name => [name, b[name].bind(b)]));
  const shown = selector => evaluate(`document.querySelector('${selector}')?.innerText ?? ''`);
  const state = () => shown('#state');
  const last = () => shown('.last');
  /* What the list of models says, which it opens; what is chosen from it. */
  const listed = async () => { if (await evaluate(`document.getElementById('menu').hidden`)) await click('#models'); return evaluate(`[...document.querySelectorAll('#menu button')].map(node => node.innerText)`); };
  const choose = async id => { await listed(); await evaluate(`[...document.querySelectorAll('#menu button')].find(node => node.querySelector('b').innerText === '${id}').click()`); };
  const usage = { prompt_tokens: 700, completion_tokens: 250, prompt_tokens_details: { cached_tokens: 100 } };
  return {
    async loading() {
      stub.down = { status: 503, code: 'model_loading' };
      stub.health = { status: 'loading', message: 'loading weights', done: 1, total: 4 };
      await b.visit(stub.url, `document.getElementById('state').className === 'loading'`);
      await until(`document.getElementById('loading').value === 0.25`);
      assert.match(await shown('#banner'), /being loaded/);
      await until(`/^loading weights, 25 %, \\d+ s$/.test(document.getElementById('elapsed').innerText)`);
      await b.shoot('loading-banner');
      // What is asked meanwhile is answered as soon as it can be.
      await b.send('Are you there?');
      await until(`document.querySelector('.last .waiting')?.innerText.includes('The model is being loaded: loading weights, 25 %')`);
      assert.strictEqual(await evaluate(`document.getElementById('banner').hidden`), true, 'it is said in one place');
      stub.health = { status: 'loading', message: 'loading weights', done: 3, total: 4 };
      await until(`document.querySelector('.last progress').value === 0.75`);
      await b.shoot('loading');
      Object.assign(stub, { down: null, health: null });
      await until(`document.getElementById('state').className === 'up' && document.getElementById('banner').hidden`);
      await b.done();
      assert.deepStrictEqual(await b.answers(), ['yes']);
      b.excuse(/status of 503/);
    },
    async full_and_tried_again() {
      stub.answers = [{ status: 429, code: 'queue_full' }, say => say('now')];
      await b.send('And now?');
      await until(`document.querySelector('.last .waiting').innerText.includes('The server is full. Trying again in')`);
      await b.done();
      assert.deepStrictEqual((await b.answers()).at(-1), 'now');
      // Who does not want to wait stops.
      stub.answers = [{ status: 503, code: 'too_many_connections', wait: 60 }];
      await b.send('Once more');
      await until(`document.querySelector('.last .waiting').innerText.includes('Trying again in')`);
      await b.shoot('full');
      await key('Escape');
      assert.match(await last(), /Stopped/);
      assert.strictEqual(await evaluate(`running.size`), 0);
      b.excuse(/status of (429|503)/);
    },
    async waiting_and_a_long_prompt() {
      let go;
      const steps = [];
      const step = () => new Promise(resolve => { go = resolve; });
      stub.answers = [async (say, chunk, _, raw) => {
        for (const value of [3, 1, 0]) { raw(`: waiting behind ${value}\n\n`); await step(); }
        raw(': prompt 150 of 600\n\n');
        await step();
        chunk({ choices: [], prompt_progress: { total: 600, cache: 0, processed: 300, time_ms: 5 } });
        await step();
        say('', { timings: { predicted_n: 0, predicted_per_second: 0 } });
        say('Done', { timings: { predicted_n: 250, predicted_per_second: 25 } });
        chunk({ choices: [], usage });
      }];
      await b.send('A long one');
      for (const text of ['3 requests before this one', 'one request before this one', 'Next in the queue', '150 of 600 tokens', '300 of 600 tokens']) {
        await until(`document.querySelector('.last .waiting').innerText.includes('${text}')`);
        steps.push(await evaluate(`document.querySelector('.last progress').hidden ? null : document.querySelector('.last progress').value`));
        if (text.startsWith('300')) await b.shoot('prompt');
        go();
      }
      await b.done();
      assert.deepStrictEqual(steps, [null, null, null, 0.25, 0.5]);
      assert.strictEqual(await shown('.last .stats'), '250 tokens · 25.0 tok/s · prompt 700 (100 cached)');
    },
    async the_context_fills() {
      const text = () => shown('#usage-text'), said = wanted => until(`document.getElementById('usage-text').innerText === '${wanted}'`);
      assert.deepStrictEqual([await text(), await evaluate(`document.getElementById('usage').classList.contains('tight')`)], ['950 of 1,000 tokens', true]);
      assert.match(await evaluate(`document.getElementById('usage').title`), /nearly full/);
      // A server that counts is believed: the conversation, and what is written next.
      stub.size = ({ messages }) => ({ n_tokens: messages.reduce((sum, { content }) => sum + content.length, 0), n_ctx: 2000 });
      await click('#new');
      await said('1,000 tokens of context');
      await evaluate(`document.getElementById('input').focus()`);
      await b.type('x'.repeat(40));
      await said('40 of 2,000 tokens');
      stub.answers = [say => say('y'.repeat(60))];
      await key('Enter');
      await b.done();
      await said('100 of 2,000 tokens');
      await b.type('z'.repeat(2000));
      await said('2,100 of 2,000 tokens');
      assert.match(await evaluate(`document.getElementById('usage').title`), /does not fit/);
      await evaluate(`{ const field = document.getElementById('input'); field.value = ''; field.dispatchEvent(new Event('input')); }`);
      await said('100 of 2,000 tokens');
      await evaluate(`state.chat.settings = { system: '${'s'.repeat(50)}' }`);
      await click('#tuning');
      await click('#tune .primary');
      await said('150 of 2,000 tokens');
      // One that cannot tell is not asked again for each word of an answer.
      let asked = 0;
      stub.size = () => { asked++; return {}; };
      stub.answers = [async say => { for (let i = 0; i < 20; i++) { say('word '); await new Promise(resolve => setTimeout(resolve, 30)); } }];
      await b.send('Words');
      await evaluate(`show(state.chats.find(one => !running.has(one.id) && one.messages.length))`);
      await b.done();
      assert(asked <= 5, `${asked} times`);
      stub.size = () => ({});
    },
    async an_answer_is_edited() {
      await click('#new');
      stub.answers = [say => say('One two three')];
      await b.send('Count');
      await b.done();
      const edit = async text => {
        await click('.last [title="Edit the answer"]');
        await evaluate(`document.querySelector('.editor textarea').select()`);
        await b.type(text);
      };
      await edit('One');
      await b.shoot('edit-answer');
      await key('Escape');
      assert.deepStrictEqual(await b.answers(), ['One two three']);
      await edit('Uno');
      await evaluate(`[...document.querySelectorAll('.editor button')].find(node => node.innerText === 'Save').click()`);
      assert.deepStrictEqual([await b.answers(), await evaluate(`state.chat.messages.length`)], [['Uno'], 2]);
      assert.match(await last(), /Edited/);
      await click('#toast button');
      assert.deepStrictEqual(await b.answers(), ['One two three']);
      // What goes on from another text stands beside the answer.
      stub.answers = [say => say(' zwei')];
      await edit('Eins');
      await key('Ctrl+Enter');
      await b.done();
      assert.deepStrictEqual([await b.answers(), stub.bodies.at(-1).messages.at(-1)], [['Eins zwei'], { role: 'assistant', content: 'Eins' }]);
      assert.strictEqual(await shown('.last .variants'), '2/2');
      const kept = await evaluate(`JSON.parse(localStorage.getItem('gristmill.chat.' + state.chat.id)).messages.map(one => one.content)`);
      assert.deepStrictEqual(kept, ['Count', 'One two three', 'Eins zwei']);
    },
    async broken_off_and_continued() {
      await click('#new');
      // It breaks off once what was told is drawn: a browser may lose what it has not given to the page yet.
      let go;
      const broken = async (text, asked, end) => {
        stub.answers = [async (say, chunk, socket) => { say(text); await new Promise(resolve => { go = resolve; }); end(socket); }];
        await b.send(asked);
        await until(`document.querySelector('.last .md').innerText === '${text}'`);
        go();
        await b.done();
      };
      await broken('The first half', 'Tell me', socket => socket.destroy());
      assert.match(await last(), /The first half[^]*The connection broke off[^]*Continue[^]*Try again/);
      await b.shoot('broken');
      stub.answers = [(say, chunk) => { say(' and the second'); chunk({ choices: [{ index: 0, delta: {}, finish_reason: 'length' }], usage }); }];
      await evaluate(`[...document.querySelectorAll('.last .notice button')].find(node => node.innerText === 'Continue').click()`);
      await b.done();
      assert.deepStrictEqual([await b.answers(), stub.bodies.at(-1).messages.at(-1)], [['The first half and the second'], { role: 'assistant', content: 'The first half' }]);
      assert.match(await last(), /Cut off at the token limit/);
      // An end without a last word is no end either.
      await broken('cut', 'And', socket => socket.end());
      assert.match(await last(), /cut[^]*broke off/);
      b.excuse(/ERR_INCOMPLETE|ERR_EMPTY|ERR_CONNECTION|net::/);
    },
    async failed_and_tried_again() {
      const before = await evaluate(`state.chat.messages.length`);
      stub.answers = [{ status: 500, code: null, message: 'the request failed' }, say => say('well')];
      await b.send('Try');
      await b.done();
      assert.match(await last(), /The request failed[^]*Try again/);
      await click('.last .notice button');
      await b.done();
      assert.strictEqual((await b.answers()).at(-1), 'well');
      assert.strictEqual(await evaluate(`state.chat.messages.length`), before + 2, 'what failed without a word leaves no variant');
      stub.answers = [(say, chunk) => { say('half'); chunk({ error: { message: 'the server is shutting down', code: null } }); }];
      await b.send('More');
      await b.done();
      assert.match(await last(), /half[^]*shutting down[^]*Continue/);
      b.excuse(/status of 500/);
    },
    async gone_and_back() {
      stub.down = 'gone';
      await b.send('Hello?');
      await b.done();
      assert.match(await last(), /does not answer[^]*Try again/);
      assert.deepStrictEqual([await state(), await evaluate(`document.getElementById('banner').hidden`)], ['no answer', false]);
      await b.shoot('gone');
      stub.down = null;
      await click('#ask-again');
      await until(`document.getElementById('state').className === 'up' && document.getElementById('banner').hidden`);
      stub.down = { status: 503, code: 'engine_failed', message: 'the model cannot be run any more: the device is lost' };
      await click('.last .notice button');
      await b.done();
      assert.deepStrictEqual([await state(), (await shown('#banner')).includes('It has to be started again')], ['failed', true]);
      stub.down = null;
      await b.visit();
      b.excuse(/net::|status of 503/);
    },
    async several_models() {
      stub.models = [{ id: 'one', max_model_len: 1000 }, { id: 'two', max_model_len: 5000 }];
      await b.visit();
      await click('#new');
      assert.deepStrictEqual(await listed(), ['one\n1,000 tokens of context · loaded', 'two\n5,000 tokens of context · loaded']);
      await choose('two');
      assert.strictEqual(await shown('#usage-text'), '5,000 tokens of context');
      await b.send('Who are you?');
      await b.done();
      assert.strictEqual(stub.bodies.at(-1).model, 'two');
      assert.match(await shown('.last .stats'), /^two/);
      await b.shoot('models');
      const first = await evaluate(`state.chat.id`);
      await click('#new');
      assert.strictEqual(await shown('#models'), 'two', 'new ones go on with it');
      await choose('one');
      await evaluate(`show(state.chats.find(one => one.id === '${first}'))`);
      assert.strictEqual(await shown('#models'), 'two', 'each conversation has its own');
      stub.models = [{ id: 'one', max_model_len: 1000 }];
      await b.visit();
      assert.deepStrictEqual(await evaluate(`[document.getElementById('models').hidden, document.getElementById('model').innerText]`), [true, 'one']);
    },
    async a_model_that_is_loaded_and_one_that_cannot_be() {
      const one = { id: 'one', max_model_len: 1000, meta: { size: 1.2e9 }, status: { value: 'loaded' } };
      stub.models = [one, { id: 'two', max_model_len: 5000, status: { value: 'unloaded' } }, { id: 'huge', max_model_len: null, status: { value: 'unloaded' } }];
      await b.visit();
      await click('#new');
      assert.deepStrictEqual(await listed(), ['one\n1.2 GB · 1,000 tokens of context · loaded', 'two\n5,000 tokens of context · available', 'huge\navailable']);
      assert.deepStrictEqual(await evaluate(`[...document.querySelectorAll('#menu [role=menuitemradio]')].map(node => node.getAttribute('aria-checked'))`), ['true', 'false', 'false']);
      await b.shoot('models-list');
      await key('Escape');
      // By the keyboard.
      await evaluate(`document.getElementById('models').focus()`);
      for (const name of ['ArrowDown', 'ArrowDown', 'Enter']) await key(name);
      assert.deepStrictEqual([await shown('#models'), await evaluate(`state.chat.model`), await b.focused()], ['two', 'two', 'models']);
      assert.strictEqual(await shown('#state'), 'loads when asked');
      // On a phone its name is what there is room for, and what a finger meets stays as large as it is.
      await b.call('Emulation.setDeviceMetricsOverride', { width: 390, height: 844, deviceScaleFactor: 2, mobile: true });
      await until(`document.getElementById('models').offsetWidth > 240`);
      assert(await evaluate(`[...document.querySelectorAll('header .icon')].every(icon => !icon.offsetWidth || icon.offsetWidth >= 34)`));
      await b.shoot('several-phone');
      await b.call('Emulation.clearDeviceMetricsOverride');
      let go;
      const step = () => new Promise(resolve => { go = resolve; });
      stub.answers = [async (say, chunk, _, raw) => {
        raw(': waiting to be loaded\n\n');
        await step();
        stub.models = [one, { ...stub.models[1], status: { value: 'loading', message: 'loading weights', done: 1, total: 4 } }, stub.models[2]];
        raw(': loading weights 1 of 4\n\n');
        await step();
        stub.models = [one, { ...stub.models[1], status: { value: 'loaded' } }, stub.models[2]];
        say('here');
      }];
      await b.send('Are you there?');
      await until(`document.querySelector('.last .waiting').innerText.includes('being loaded: waiting to be loaded')`);
      go();
      await until(`document.querySelector('.last .waiting').innerText.includes('loading weights, 25 %') && document.querySelector('.last progress').value === 0.25`);
      await evaluate(`refresh()`);
      assert.strictEqual(await evaluate(`document.getElementById('banner').hidden`), true, 'it is said in one place');
      assert.strictEqual((await listed())[1], 'two\n5,000 tokens of context · loading 25 %');
      await key('Escape');
      await evaluate(`begin()`);
      await until(`document.getElementById('loading').value === 0.25 && document.getElementById('elapsed').innerText === 'loading weights, 25 %'`);
      await evaluate(`show(state.chats.find(one => running.has(one.id)))`);
      await b.shoot('model-loading');
      go();
      await b.done();
      await until(`document.getElementById('banner').hidden && document.getElementById('models').getAttribute('aria-label') === 'Model: two, loaded'`);
      assert.strictEqual(stub.bodies.at(-1).model, 'two');
      // One that is too large is refused, not asked again, and another can be chosen.
      await choose('huge');
      stub.models = [one, stub.models[1], { ...stub.models[2], status: { value: 'unloaded', failed: true, too_large: true, message: 'it takes 9 MB' } }];
      stub.answers = [{ status: 400, code: 'model_too_large', message: 'the model `huge` cannot be loaded: it takes 9 MB' }];
      await b.send('And you?');
      await b.done();
      assert.match(await last(), /cannot be loaded: it takes 9 MB[^]*Try again/);
      await until(`document.getElementById('banner-text').innerText.includes('huge cannot be loaded: it takes 9 MB. Choose another model')`);
      await b.shoot('model-failed');
      await choose('two');
      await until(`document.getElementById('banner').hidden`);
      await click('.last .notice button');
      await b.done();
      assert.deepStrictEqual([stub.bodies.at(-1).model, (await b.answers()).at(-1)], ['two', 'yes']);
      const kept = await evaluate(`JSON.parse(localStorage.getItem('gristmill.chat.' + state.chat.id)).model`);
      assert.strictEqual(kept, 'two', 'the choice is the conversation\'s');
      stub.models = [one];
      await b.visit();
      b.excuse(/status of 400/);
    },
    async text_is_drawn_as_it_comes() {
      let go;
      const step = () => new Promise(resolve => { go = resolve; });
      stub.answers = [async (say, chunk) => {
        chunk({ choices: [{ index: 0, delta: { reasoning_content: 'Let me see.' } }] });
        await step();
        for (const text of ['One', ' **two', '**']) { say(text); await step(); }
      }];
      await click('#new');
      await b.send('Think');
      await until(`document.querySelector('.last .thought summary')?.innerText === 'Thinking'`);
      go();
      for (const html of ['<p>One</p>', '<p>One **two</p>', '<p>One <strong>two</strong></p>']) {
        await until(`document.querySelector('.last .md').innerHTML === '${html}'`);
        assert.strictEqual(await evaluate(`running.size`), 1);
        go();
      }
      await b.done();
      assert.deepStrictEqual(await evaluate(`[document.querySelector('.last .thought summary').innerText, document.querySelector('.last .thought').open, document.querySelector('.last .thought div').innerText]`), ['Thought for 1 s', false, '']);
      await click('.last .thought summary');
      assert.strictEqual(await shown('.last .thought div'), 'Let me see.');
    },
  };
};
