// The worker: holds one model and makes its answers. Messages come from main.js; events go back.

import { Host } from './host.js';

/* Milliseconds of steps before messages are taken. */
const TURN = 30;

let file = null, asked = 0, failed = false;
const reader = new FileReaderSync();
const told = event => {
  failed ||= event.event === 'failure';
  postMessage(event);
};
const host = new Host(told, (offset, to) => {
  const part = file.slice(offset, offset + to.length);
  if (part.size !== to.length) return false;
  to.set(new Uint8Array(reader.readAsArrayBuffer(part)));
  return true;
});

/* A turn of the event loop, in which messages are taken. */
const pause = (() => {
  const { port1, port2 } = new MessageChannel(), waiting = [];
  port1.onmessage = () => waiting.shift()();
  return () => new Promise(done => { waiting.push(done); port2.postMessage(0); });
})();

const failure = (error, hint) => postMessage({ event: 'failure', error: String(error?.message ?? error), hint });

async function fetched(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

const requests = {
  async open({ blob, url }) {
    try {
      const program = fetched('gristmill.wasm').then(response => response.arrayBuffer());
      file = blob ?? await (await fetched(url)).blob();
      await host.start(await program);
    } catch (error) {
      return failure(error, error instanceof WebAssembly.CompileError
        ? 'this browser has no SIMD in WebAssembly: use a newer one'
        : 'serve the whole folder of the page by HTTP, and reload');
    }
    host.call('open', 'wasm', file.size);
  },
  async ask(request) {
    const mine = ++asked;
    if (!host.call('ask', JSON.stringify(request))) return;
    for (let more = true; more;) {
      const until = performance.now() + TURN;
      while (more && performance.now() < until) more = host.exports.step();
      await pause();
      if (mine !== asked) return;
    }
  },
  stop() {
    asked++;
    host.exports.stop();
  },
};

onmessage = async ({ data: { request, ...rest } }) => {
  failed = false;
  try { await requests[request](rest); }
  catch (error) { if (!failed) failure(error, 'open the model again'); }
};
