// A server in many states: it gives away the page of the real one, and answers as a check says.
'use strict';
const http = require('node:http');

class Stub {
  constructor(upstream) {
    const [host, port] = upstream.split(':');
    Object.assign(this, { upstream: { host, port }, models: [{ id: 'one', max_model_len: 1000 }], down: null, health: null, answers: [], bodies: [], size: () => ({}) });
    this.server = http.createServer((request, response) => this.answer(request, response)).listen(0, '127.0.0.1');
  }
  get url() { return `http://127.0.0.1:${this.server.address().port}/`; }
  close() { this.server.closeAllConnections(); this.server.close(); }
  answer(request, response) {
    if (!request.url.startsWith('/v1') && !['/health', '/apply-template'].includes(request.url)) {
      http.get({ ...this.upstream, path: request.url }, from => { response.writeHead(from.statusCode, from.headers); from.pipe(response); });
      return;
    }
    const refuse = ({ status, code, message = 'no', wait = 1 }) => {
      response.writeHead(status, { 'content-type': 'application/json', 'retry-after': String(wait) });
      response.end(JSON.stringify({ error: { message, type: 'server_error', param: null, code } }));
    };
    const tell = (status, value) => { response.writeHead(status, { 'content-type': 'application/json' }); response.end(JSON.stringify(value)); };
    if (this.down === 'gone') { request.socket.destroy(); return; }
    if (request.url === '/health') { tell(this.down ? 503 : 200, this.health ?? { status: 'ok' }); return; }
    if (this.down) { refuse(this.down); return; }
    if (request.url === '/apply-template') {
      let body = '';
      request.on('data', data => { body += data; });
      request.on('end', () => tell(200, { prompt: '', ...this.size(JSON.parse(body)) }));
      return;
    }
    if (request.url === '/v1/models') { tell(200, { object: 'list', data: this.models }); return; }
    let body = '';
    request.on('data', data => { body += data; });
    request.on('end', async () => {
      this.bodies.push(JSON.parse(body));
      const script = this.answers.shift() ?? (say => say('yes'));
      if (typeof script !== 'function') { refuse(script); return; }
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      const chunk = value => response.write(`data: ${JSON.stringify(value)}\n\n`);
      const say = (content, more = {}) => chunk({ choices: [{ index: 0, delta: { content }, finish_reason: null }], ...more });
      await script(say, chunk, request.socket, text => response.write(text));
      if (!request.socket.destroyed) response.end('data: [DONE]\n\n');
    });
  }
}
module.exports = { Stub };
