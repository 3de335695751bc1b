// The worker: holds one model and makes its answers. Messages come from main.js; events go back.

import { Gpu } from './gpu.js';
import { Host } from './host.js';

/* Milliseconds of steps before messages are taken. */
const TURN = 30;

let file = null, stopping = false, failed = false, tries = false;
const reader = new FileReaderSync();
const told = event => {
  // What fails on the GPU is done by the processor.
  if (tries && event.event === 'failure') return console.warn(event.error);
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

/* The GPU, unless the page is opened with ?device=wasm; a software GPU is slower than the processor. */
async function gpu(device) {
  if (device === 'wasm') return null;
  const found = await Gpu.open().catch(() => null);
  if (!found && device === 'webgpu') throw new Error('this browser has no WebGPU, or its programs cannot wait for it');
  return found && (device === 'webgpu' || !found.isSoftware) ? found : null;
}

const requests = {
  async open({ blob, url, device }) {
    let found, program;
    try {
      const loading = fetched('gristmill.wasm').then(response => response.arrayBuffer());
      file = blob ?? await (await fetched(url)).blob();
      found = await gpu(device);
      program = await loading;
      await host.start(program, found);
    } catch (error) {
      return failure(error, error instanceof WebAssembly.CompileError
        ? 'this browser has no SIMD in WebAssembly: use a newer one'
        : 'serve the whole folder of the page by HTTP, and reload');
    }
    if (found) {
      tries = device !== 'webgpu';
      try { if (await host.call('open', 'webgpu', file.size) || !tries) return; }
      catch (error) { if (!tries) throw error; }
      finally { tries = false; }
      await host.start(program, null);
    }
    await host.call('open', 'wasm', file.size);
  },
  async ask(request) {
    stopping = false;
    if (!await host.call('ask', JSON.stringify(request))) return;
    for (let more = true; more;) {
      const until = performance.now() + TURN;
      while (more && performance.now() < until) more = await host.run('step');
      await pause();
      if (more && stopping) {
        host.exports.stop();
        return;
      }
    }
  },
};

/* Requests take turns: a program that waits for the GPU must not be called. */
let turn = Promise.resolve();
onmessage = ({ data: { request, ...rest } }) => {
  stopping = true;
  if (request === 'stop') return;
  turn = turn.then(async () => {
    failed = false;
    try { await requests[request](rest); }
    catch (error) { if (!failed) failure(error, 'open the model again'); }
  });
};
