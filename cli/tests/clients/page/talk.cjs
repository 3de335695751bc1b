// Questions and answers, of the demo model.
'use strict';
const assert = require('node:assert');
const { sleep } = require('./browser.cjs');

module.exports = (b, { home }) => {
  const { evaluate, until, click, key } = Object.fromEntries(['evaluate', 'until', 'click', 'key'].map(name => [name, b[name].bind(b)]));
  const idle = () => until(`fetch('metrics').then(r => r.text()).then(t => /gristmill_requests_running[{]model="demo"[}] 0/.test(t))`, 'the server has stopped too');
  // Stories do not end by themselves, and what comes is read slowly: a fast machine would be done before anybody looks.
  const endless = () => evaluate(`window.plain = window.fetch; window.fetch = async (url, options) => {
    if (!url.endsWith('completions')) return plain(url, options);
    const story = /story/.test(options.body);
    const reply = await plain(url, story ? { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) } : options);
    const reader = reply.body.getReader();
    const body = new ReadableStream({
      async pull(to) {
        await new Promise(done => setTimeout(done, story ? 15 : 150));
        const { done, value } = await reader.read();
        if (done) to.close(); else to.enqueue(value);
      },
      cancel: reason => reader.cancel(reason),
    }, { highWaterMark: 0 });
    return new Response(body, { status: reply.status, headers: reply.headers });
  }; 0`);
  const ending = () => evaluate(`window.fetch = plain; 0`);
  const visible = `[...document.querySelectorAll('.assistant .md')].at(-1)?.innerText.length ?? 0`;
  const showChat = id => evaluate(`show(state.chats.find(one => one.id === ${JSON.stringify(id)}))`);
  return {
    async open() {
      await b.visit(home);
      await evaluate(`localStorage.clear(); store.set('settings', { temperature: '0' })`);
      await b.visit();
      assert.strictEqual(await evaluate(`document.getElementById('model').textContent`), 'demo');
      assert.strictEqual(await evaluate(`document.getElementById('usage-text').textContent`), '2,048 tokens of context');
      await b.shoot('empty-light');
    },
    async send() {
      await b.send('What is the capital of Japan?');
      await b.done();
      assert.deepStrictEqual(await b.answers(), ['The capital of Japan is Tokyo.']);
      await b.send('Tell me a story.');
      await b.done();
      assert.match(await evaluate(`[...document.querySelectorAll('.stats')].at(-1).textContent`), /\d+ tokens · [\d.,]+ tok\/s · prompt \d+/);
      assert.match(await evaluate(`document.getElementById('usage-text').textContent`), /^1\d\d of 2,048 tokens$/);
      assert.strictEqual(await evaluate(`state.chats.length`), 1);
      const spoken = await evaluate(`[...document.querySelectorAll('#spoken p')].map(node => node.innerText)`);
      assert.deepStrictEqual([spoken[0], spoken.at(-1), spoken.slice(1, -1).join('\n\n')], ['Answering', 'The answer is complete', (await b.answers()).at(-1)]);
      await b.shoot('conversation-light');
    },
    async stop() {
      await endless();
      await b.send('Tell me a story.');
      await until(`${visible} > 20`);
      await click('#send');
      const stopped = (await b.answers()).at(-1);
      assert.strictEqual(await evaluate(`running.size`), 0);
      await sleep(200);
      assert.strictEqual((await b.answers()).at(-1), stopped, 'nothing comes any more');
      assert.strictEqual(await evaluate(`[...document.querySelectorAll('.muted')].at(-1).textContent`), 'Stopped');
      await idle();
      // With the key too.
      await b.send('Tell me a story.');
      await until(`running.get(state.chat.id)?.message.content.length > 20`);
      await key('Escape');
      assert.strictEqual(await evaluate(`running.size`), 0);
      await ending();
    },
    async continue_after_a_stop() {
      // What was written, since a break between two lines is drawn as a space.
      const written = () => evaluate(`path(state.chat).at(-1).content`);
      const before = await written();
      await evaluate(`window.sent = []; window.plain = window.fetch; window.fetch = (url, options) => { if (!url.endsWith('completions')) return plain(url, options); const body = JSON.parse(options.body); sent.push(body); return plain(url, { ...options, body: JSON.stringify({ ...body, ignore_eos: true, max_tokens: 16 }) }); }; 0`);
      // Where the page was slow to stop, the story has come to its end.
      await click('.last [title=Continue]');
      await b.done();
      await ending();
      const after = await written();
      assert(after.startsWith(before) && after.length > before.length, `${before} → ${after}`);
      const { role, content } = await evaluate(`sent[0].messages.at(-1)`);
      assert.deepStrictEqual([role, content], ['assistant', before], 'the server is asked to go on with it');
      assert.strictEqual(await evaluate(`path(state.chat).at(-1).stopped`), undefined);
    },
    async again_and_edit() {
      const before = await b.answers();
      await click('.last [title="Answer again"]');
      await b.done();
      assert.strictEqual((await b.answers()).length, before.length);
      assert.strictEqual(await evaluate(`document.querySelector('.last .variants').getAttribute('aria-label')`), 'answer 2 of 2');
      await click('.last [title="Earlier answer"]');
      assert.strictEqual((await b.answers()).at(-1), before.at(-1), 'the earlier one is there');
      assert.strictEqual(await b.focused(), 'Later answer', 'the keyboard stays where there is another');
      await key('Enter');
      assert.strictEqual(await evaluate(`document.querySelector('.last .variants').innerText.trim()`), '2/2');
      await evaluate(`[...document.querySelectorAll('.user [title=Edit]')][1].click()`);
      await evaluate(`{ const area = document.querySelector('.editor textarea'); area.value = 'What is 17 plus 25?'; document.querySelector('.editor .primary').click(); }`);
      await b.done();
      assert.deepStrictEqual(await b.answers(), ['The capital of Japan is Tokyo.', '17 plus 25 is 42.']);
      // What followed the other question is there with it.
      await click('[title="Earlier question"]');
      assert.strictEqual((await b.answers()).length, before.length);
      await click('[title="Later question"]');
      assert.strictEqual((await b.answers()).length, 2);
    },
    async the_context_is_counted() {
      const size = end => evaluate(`fetch('apply-template', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(request(state.chat, path(state.chat).slice(0, ${end}), 'demo')) }).then(response => response.json())`);
      const { n_tokens: asked, n_ctx: whole } = await size(3);
      assert.deepStrictEqual([asked, whole], [await evaluate(`path(state.chat)[3].stats.prompt`), 2048], 'what the prompt of the last answer took');
      const { n_tokens: all } = await size(4);
      assert(all > asked);
      await until(`document.getElementById('usage-text').innerText === '${all.toLocaleString('en')} of 2,048 tokens'`);
      assert(await evaluate(`server.models[0].size > 1e6`), 'and the size of the model is known');
    },
    async delete_and_undo() {
      const before = await b.answers();
      await click('.last [title=Delete]');
      assert.deepStrictEqual(await b.answers(), before.slice(0, -1));
      assert.strictEqual(await evaluate(`document.querySelector('.last .text').innerText`), 'What is 17 plus 25?', 'the question stays');
      await click('#toast button');
      assert.deepStrictEqual(await b.answers(), before);
      // With all that follows; another question stands in the same place.
      await evaluate(`[...document.querySelectorAll('.user [title="Delete with what follows"]')][1].click()`);
      assert.match(await evaluate(`document.getElementById('toast').innerText`), /2 messages deleted/);
      assert.strictEqual(await evaluate(`[...document.querySelectorAll('.user .text')].at(-1).innerText`), 'Tell me a story.');
      await click('#toast button');
      assert.deepStrictEqual(await b.answers(), before);
      // One that comes is ended, and asked again there is an answer as before.
      await endless();
      await click('.last [title="Answer again"]');
      await evaluate(`document.querySelector('.user:nth-last-child(2) [title="Delete with what follows"]').click()`);
      assert.strictEqual(await evaluate(`running.size`), 0);
      await click('#toast button');
      await ending();
      await idle();
      assert.strictEqual(await evaluate(`variants(state.chat, path(state.chat).at(-1)).length`), 2);
      await click('.last [title=Delete]');
      assert.deepStrictEqual(await b.answers(), before);
    },
    async reload() {
      await b.visit();
      await until(`document.querySelectorAll('.assistant').length === 2`);
      assert.deepStrictEqual(await b.answers(), ['The capital of Japan is Tokyo.', '17 plus 25 is 42.']);
      assert.strictEqual(await evaluate(`document.querySelector('.chat.current').innerText`), 'What is the capital of Japan?');
    },
    async several_answers() {
      const text = id => evaluate(`running.get(${JSON.stringify(id)})?.message.content.length ?? -1`);
      await endless();
      await click('#new');
      await b.send('Tell me a story.');
      const first = await evaluate(`state.chat.id`);
      await until(`${visible} > 20`);
      await click('#new');
      assert.strictEqual(await evaluate(`document.getElementById('send').title`), 'Send', 'what stops another is not here');
      await b.send('What is the capital of Japan?');
      const second = await evaluate(`state.chat.id`);
      assert.strictEqual(await evaluate(`running.size`), 2);
      assert.strictEqual(await evaluate(`document.querySelectorAll('.chat .busy').length`), 2);
      const before = await text(first);
      await showChat(first);
      await until(`${visible} > ${before + 20}`, 'the first still comes, and is drawn');
      await key('Escape');
      // What waited goes on at once, and may be whole already; that it was not stopped its answer shows below.
      assert.strictEqual(await evaluate(`running.has(${JSON.stringify(first)})`), false, 'what is shown stops');
      await showChat(second);
      await b.done();
      assert.deepStrictEqual(await b.answers(), ['The capital of Japan is Tokyo.']);
      // Asked anew beside another answer, and deleted while it comes.
      await showChat(first);
      await click('.last [title="Answer again"]');
      await until(`${visible} > 20`);
      await showChat(second);
      await click('.last [title="Answer again"]');
      assert.strictEqual(await evaluate(`running.size`), 2);
      await evaluate(`[...document.querySelectorAll('.chat')].find(node => node.innerText.startsWith('Tell')).querySelector('[aria-haspopup]').click()`);
      await evaluate(`[...document.querySelectorAll('#menu button')].find(node => node.innerText === 'Delete').click()`);
      await b.done();
      await idle();
      assert.deepStrictEqual(await b.answers(), ['The capital of Japan is Tokyo.']);
      assert.strictEqual(await evaluate(`store.get('chat.' + ${JSON.stringify(first)}, null)`), null, 'a stream does not bring back what was deleted');
      await ending();
    },
    async title_follows_its_message() {
      await click('.user [title=Edit]');
      await evaluate(`document.querySelector('.editor textarea').value = 'What is 17 plus 25?'`);
      await click('.editor .primary');
      await b.done();
      assert.strictEqual(await evaluate(`document.querySelector('.chat.current').innerText`), 'What is 17 plus 25?');
    },
    async overrun_has_ways_out() {
      await evaluate(`ask(state.chat, 'word '.repeat(4000).trim())`);
      await b.done();
      await until(`/^[5-9],\\d{3} of 2,048 tokens$/.test(document.getElementById('usage-text').innerText)`);
      b.excuse(/status of 400/);
      assert.match(await evaluate(`document.querySelector('.last .notice').innerText`), /does not fit the model's context[^]*Edit the message[^]*New conversation/);
      await b.shoot('overrun');
      await click('.last .notice button');
      assert.strictEqual(await b.focused(), 'TEXTAREA');
      await key('Escape');
      await click('.last .notice button:last-child');
      assert.deepStrictEqual(await evaluate(`[state.chat.messages.length, document.getElementById('input').value.length]`), [0, 19999]);
      await evaluate(`{ const field = document.getElementById('input'); field.value = ''; field.dispatchEvent(new Event('input')); }`);
      await until(`document.getElementById('usage-text').innerText === '2,048 tokens of context'`);
      b.excuse(/status of 400/);
    },
    async attachments() {
      await evaluate(`window.attach = (...files) => { const data = new DataTransfer(); for (const [name, text] of files) data.items.add(new File([text], name)); document.getElementById('files').files = data.files; document.getElementById('files').dispatchEvent(new Event('change')); }; 0`);
      await evaluate("attach(['notes.md', 'The capital of Japan is `Tokyo`.\\r\\n```\\nx\\n```\\n'], ['b.txt', 'B'])");
      await until(`document.querySelectorAll('#chips .chip').length === 2`);
      assert.strictEqual(await evaluate(`document.getElementById('send').disabled`), false, 'a file alone can be sent');
      await click('#chips [title="Remove b.txt"]');
      assert.deepStrictEqual(await evaluate(`[document.querySelectorAll('#chips .chip').length, document.activeElement.id]`), [1, 'input']);
      for (const [what, refused] of [[`['big.txt', 'x'.repeat(200000)]`, /big.txt has 200 kB; an attachment may have 128 kB/], [`['a.png', new Uint8Array([137, 80, 0, 255])]`, /a.png is not text/]]) {
        await evaluate(`attach(${what})`);
        await until(`!document.getElementById('toast').hidden`);
        assert.match(await evaluate(`document.getElementById('toast').innerText`), refused);
        await click('#toast button');
      }
      await evaluate(`{ const data = new DataTransfer(); data.items.add(new File(['C'], 'c.txt')); document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); }`);
      await until(`document.querySelectorAll('#chips .chip').length === 2`);
      await click('#chips [title="Remove c.txt"]');
      // What is pasted and long becomes one too, unless somebody wants it in the message.
      await evaluate(`{ const data = new DataTransfer(); data.setData('text/plain', 'long '.repeat(1000)); document.getElementById('input').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); }`);
      await until(`document.querySelectorAll('#chips .chip').length === 2`);
      await click('#toast button');
      assert.deepStrictEqual(await evaluate(`[document.querySelectorAll('#chips .chip').length, document.getElementById('input').value.length]`), [1, 5000]);
      await evaluate(`{ const field = document.getElementById('input'); field.value = ''; field.dispatchEvent(new Event('input')); }`);
      await b.shoot('attachment');
      await evaluate(`window.plain = window.fetch; window.fetch = (url, options) => { if (url.endsWith('completions')) window.body = JSON.parse(options.body); return plain(url, options); }; 0`);
      await b.send('What is in it?');
      await b.done();
      await ending();
      assert.strictEqual(await evaluate(`body.messages.at(-1).content`), 'What is in it?\n\nFile notes.md:\n````\nThe capital of Japan is `Tokyo`.\n```\nx\n```\n````');
      assert.match(await evaluate(`document.querySelector('.user').innerText`), /notes.md\s+4\d B\s+What is in it\?/);
      await click('.user .chip button');
      assert.match(await evaluate(`document.getElementById('file').open && document.getElementById('file-text').innerText`), /Tokyo/);
      await key('Escape');
    },
  };
};
