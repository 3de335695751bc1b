// The program of the worker: gives it what a module of WebAssembly lacks, and calls it.

import { WITHOUT } from './gpu.js';

/* A module with one function that uses an instruction of relaxed SIMD. */
const RELAXED = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 15, 1, 13, 0,
  65, 1, 253, 15, 65, 2, 253, 15, 253, 128, 2, 11]);

export const hasRelaxedSimd = () => WebAssembly.validate(RELAXED);

export class Host {
  /* `tell` takes events; `read` copies bytes of the opened file to memory; `gpu` is open, or null. */
  constructor(tell, read) {
    Object.assign(this, { tell, read, gpu: null, message: '' });
  }
  bytes(start, length) { return new Uint8Array(this.exports.memory.buffer, start >>> 0, length); }
  imports() {
    return {
      now: () => performance.now(),
      tell: (start, length) => this.tell(JSON.parse(new TextDecoder().decode(this.bytes(start, length)))),
      read_file: (offset, to, length) => Number(this.read(offset, this.bytes(to, length))),
      has_relaxed_simd: () => Number(hasRelaxedSimd()),
      load_module: (start, length, functions) => this.loadModule(this.bytes(start, length), functions),
      take_message: (to, length) => {
        const message = this.message || this.gpu?.error || '';
        this.message = '';
        if (this.gpu) this.gpu.error = '';
        return this.put(to, length, message);
      },
      ...(this.gpu?.imports(this) ?? WITHOUT),
    };
  }
  /* Writes a text, at most so many bytes; returns its length. */
  put(to, length, text) { return new TextEncoder().encodeInto(text, this.bytes(to, length)).written; }
  async start(program, gpu) {
    this.gpu = gpu;
    const { instance } = await WebAssembly.instantiate(program, { gristmill: this.imports() });
    this.exports = instance.exports;
    this.exports.begin();
  }
  /* Compiles kernels, and puts their functions into the program's table: it calls them as its own. */
  loadModule(bytes, functions) {
    try {
      const { memory, __indirect_function_table: table } = this.exports;
      const instance = new WebAssembly.Instance(new WebAssembly.Module(bytes), { gristmill: { memory } });
      const first = table.grow(functions);
      for (let i = 0; i < functions; i++) table.set(first + i, instance.exports[`k${i}`]);
      return first;
    } catch (error) {
      this.message = String(error);
      return -1;
    }
  }
  /* Calls a function of the program, which may wait for the GPU. */
  run(name, ...given) {
    const run = this.exports[name];
    return this.gpu ? WebAssembly.promising(run)(...given) : run(...given);
  }
  /* The same with a text as the last two arguments. */
  async call(name, text, ...before) {
    const bytes = new TextEncoder().encode(text);
    const start = this.exports.allocate(bytes.length);
    this.bytes(start, bytes.length).set(bytes);
    try { return await this.run(name, ...before, start, bytes.length); }
    finally { this.exports.release(start, bytes.length); }
  }
}
