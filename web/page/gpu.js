// The GPU of the page, for the program: it knows objects by number, and waits for reads.

/* Kinds of a binding, in the program's order. */
const KINDS = ['storage', 'read-only-storage', 'uniform'];
const LIMITS = ['maxBufferSize', 'maxStorageBufferBindingSize', 'maxStorageBuffersPerShaderStage', 'maxComputeInvocationsPerWorkgroup', 'maxComputeWorkgroupSizeX', 'maxComputeWorkgroupStorageSize'];

/* Whether the program can wait for a promise (JavaScript Promise Integration). */
export const canWait = () => 'promising' in WebAssembly && 'Suspending' in WebAssembly;

export class Gpu {
  /* Opens the adapter; null if there is none, or the program could not wait for it. */
  static async open() {
    if (!canWait() || !navigator.gpu) return null;
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: 'high-performance' });
    if (!adapter) return null;
    const requiredLimits = Object.fromEntries(LIMITS.map(name => [name, adapter.limits[name]]));
    return new Gpu(adapter, await adapter.requestDevice({ requiredLimits }));
  }
  constructor(adapter, device) {
    Object.assign(this, { adapter, device, objects: [null], free: [], error: '' });
    device.onuncapturederror = ({ error }) => this.fail(error.message);
    device.lost.then(({ message, reason }) => { if (reason !== 'destroyed') this.fail(`the GPU is lost: ${message}`); });
  }
  fail(message) { this.error ||= message || 'an error without a text'; }
  get name() {
    const { vendor, architecture, device, description } = this.adapter.info;
    return description || [vendor, architecture, device].filter(Boolean).join(' ') || 'unknown GPU';
  }
  get isSoftware() {
    const { info } = this.adapter;
    return !!(info.isFallbackAdapter ?? this.adapter.isFallbackAdapter) || /swiftshader|llvmpipe/i.test(this.name);
  }
  limits() {
    const of = this.device.limits;
    return [of.maxBufferSize, of.maxStorageBufferBindingSize, of.maxStorageBuffersPerShaderStage,
      Math.min(of.maxComputeInvocationsPerWorkgroup, of.maxComputeWorkgroupSizeX), of.maxComputeWorkgroupStorageSize,
      Math.max(of.minStorageBufferOffsetAlignment, of.minUniformBufferOffsetAlignment), Number(this.isSoftware), navigator.hardwareConcurrency];
  }
  keep(object) {
    const number = this.free.pop() ?? this.objects.length;
    this.objects[number] = object;
    return number;
  }
  drop(number) {
    const object = this.objects[number];
    object?.destroy?.();
    this.objects[number] = null;
    this.free.push(number);
  }
  buffer(size, uniform) {
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
    return this.keep(this.device.createBuffer({ size, usage: (uniform ? UNIFORM : STORAGE) | COPY_SRC | COPY_DST }));
  }
  async read(number, offset, size) {
    const { MAP_READ, COPY_DST } = GPUBufferUsage;
    const staging = this.device.createBuffer({ size, usage: MAP_READ | COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.objects[number], offset, staging, 0, size);
    this.device.queue.submit([encoder.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const bytes = new Uint8Array(staging.getMappedRange()).slice();
    staging.destroy();
    return bytes;
  }
  /* Starts to compile a pipeline; `compiled` waits for it. */
  pipeline(code, entryPoint, kinds) {
    const { device } = this;
    const entries = kinds.map((kind, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: KINDS[kind] } }));
    const layout = device.createBindGroupLayout({ entries });
    const module = device.createShaderModule({ code });
    const promise = device.createComputePipelineAsync({
      layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
      compute: { module, entryPoint },
    });
    promise.catch(() => {}); // `compiled` takes the error
    return this.keep({ promise, layout });
  }
  async compiled(number) {
    const of = this.objects[number];
    of.pipeline = await of.promise;
  }
  bind(number, parts) {
    const entries = [];
    for (let i = 0; i < parts.length; i += 3) {
      const [buffer, offset, size] = parts.subarray(i, i + 3);
      entries.push({ binding: i / 3, resource: { buffer: this.objects[buffer], offset, size } });
    }
    return this.keep(this.device.createBindGroup({ layout: this.objects[number].layout, entries }));
  }
  run(dispatches) {
    const encoder = this.device.createCommandEncoder(), pass = encoder.beginComputePass();
    for (let i = 0; i < dispatches.length; i += 4) {
      pass.setPipeline(this.objects[dispatches[i]].pipeline);
      pass.setBindGroup(0, this.objects[dispatches[i + 1]]);
      pass.dispatchWorkgroups(dispatches[i + 2], dispatches[i + 3]);
    }
    pass.end();
    this.device.queue.submit([encoder.finish()]);
  }
  /* The functions that the program imports. */
  imports(host) {
    const text = (start, length) => new TextDecoder().decode(host.bytes(start, length));
    const words = (start, length) => new Uint32Array(host.exports.memory.buffer, start >>> 0, length);
    const waiting = work => new WebAssembly.Suspending(async (...given) => {
      try { return await work(...given); }
      catch (error) {
        this.fail(String(error.message ?? error));
        return 0;
      }
    });
    return {
      gpu_limits: to => {
        new Float64Array(host.exports.memory.buffer, to >>> 0, 8).set(this.limits());
        return 1;
      },
      gpu_name: (to, length) => host.put(to, length, this.name),
      gpu_buffer: (size, uniform) => this.buffer(size, uniform),
      gpu_free: number => this.drop(number),
      gpu_write: (number, offset, start, length) => this.device.queue.writeBuffer(this.objects[number], offset, host.bytes(start, length)),
      gpu_read: waiting(async (number, offset, to, length) => {
        host.bytes(to, length).set(await this.read(number, offset, length));
        return 1;
      }),
      gpu_pipeline: (start, length, name, nameLength, kinds, count) => this.pipeline(text(start, length), text(name, nameLength), [...words(kinds, count)]),
      gpu_compiled: waiting(async number => {
        await this.compiled(number);
        return 1;
      }),
      gpu_bind: (number, parts, count) => this.bind(number, words(parts, 3 * count)),
      gpu_run: (dispatches, count) => this.run(words(dispatches, 4 * count)),
    };
  }
}

/* The same functions where there is no GPU. */
export const WITHOUT = Object.fromEntries(['limits', 'name', 'buffer', 'free', 'write', 'read', 'pipeline', 'compiled', 'bind', 'run'].map(name => [`gpu_${name}`, () => 0]));
