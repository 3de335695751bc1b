// The page: a model in a worker, a conversation with it.

import { $, bytes, count, el } from './shared/dom.js';
import { markdown } from './shared/markdown.js';

const DEMO = 'demo.gguf', DEVICE = new URLSearchParams(location.search).get('device');
const STAGES = { planning: 'Planning kernels', compiling: 'Compiling kernels', loading: 'Loading weights' };

let worker = null, messages = [], answer = null, opened = 0;

function banner(text, bad = false, part = null) {
  $('banner').hidden = !text;
  $('banner').className = bad ? 'bad' : '';
  $('banner-text').textContent = text;
  $('progress').hidden = bad;
  if (part === null) $('progress').removeAttribute('value');
  else $('progress').value = part;
}

function busy(answering) {
  $('send').hidden = answering;
  $('stop').hidden = !answering;
}

function fresh() {
  messages = [];
  answer = null;
  $('log').replaceChildren();
  $('empty').hidden = false;
  busy(false);
}

/* Opens a model in a worker of its own: the memory of the one before is freed with its worker. */
function open(source, name) {
  worker?.terminate();
  fresh();
  opened = performance.now();
  $('input').disabled = $('send').disabled = true;
  $('name').textContent = name;
  $('facts').textContent = '';
  banner('Loading the program');
  worker = new Worker('worker.js', { type: 'module' });
  worker.onmessage = ({ data }) => events[data.event](data);
  worker.onerror = event => events.failure({ error: event.message || 'the worker cannot be started', hint: 'serve the folder of the page by HTTP: a browser starts no workers of files' });
  worker.postMessage({ request: 'open', device: DEVICE, ...source });
}

const events = {
  progress({ stage, done, total }) {
    banner(`${STAGES[stage]}: ${stage === 'loading' ? `${bytes(done)} of ${bytes(total)}` : `${done} of ${total}`}`, false, total ? done / total : null);
  },
  ready({ name, device, bytes: size, context, warnings }) {
    const seconds = (performance.now() - opened) / 1e3;
    $('name').textContent = name;
    $('facts').textContent = `${device} · ${bytes(size)} · ${count(context)} tokens of context · ready in ${seconds.toFixed(1)} s`;
    $('facts').dataset.seconds = seconds;
    banner(warnings.join(' '));
    $('progress').hidden = true;
    $('input').disabled = $('send').disabled = false;
    $('input').focus();
  },
  text({ text, reasoning }) {
    if (!answer) return;
    answer[reasoning ? 'thought' : 'said'] += text;
    draw();
  },
  end({ why, prompt, prefill, tokens, steps, seconds }) {
    if (!answer) return;
    draw();
    const rate = (n, time) => (n / Math.max(time, 1e-9)).toFixed(1);
    const parts = [`${prompt} prompt tokens, ${rate(prompt, prefill)} tok/s`, `${tokens} tokens${steps ? `, ${rate(steps, seconds)} tok/s` : ''}`, why];
    const stats = el('p', { class: 'stats' }, parts.join(' · '));
    Object.assign(stats.dataset, { prompt, prefill, tokens, steps, seconds });
    answer.node.append(stats);
    messages.push({ role: 'assistant', content: answer.said });
    answer = null;
    busy(false);
  },
  failure({ error, hint }) {
    banner(hint ? `${error} — ${hint}` : error, true);
    answer = null;
    busy(false);
  },
};

function draw() {
  const { node, said, thought, text, reasoning } = answer;
  const below = $('log').parentElement;
  const follows = below.scrollHeight - below.scrollTop - below.clientHeight < 60;
  reasoning.hidden = !thought;
  reasoning.lastChild.textContent = thought;
  markdown(text, said);
  if (follows) node.scrollIntoView({ block: 'end' });
}

function number(id) {
  const value = $(id).value.trim();
  return value === '' ? null : Number(value);
}

function send() {
  const content = $('input').value.trim();
  if (!content || answer || $('input').disabled) return;
  banner('');
  $('input').value = '';
  $('empty').hidden = true;
  messages.push({ role: 'user', content });
  const reasoning = el('details', { class: 'thought', hidden: true }, el('summary', {}, 'Reasoning'), el('div'));
  const text = el('div', { class: 'md' }), node = el('article', { class: 'answer' }, reasoning, text);
  $('log').append(el('p', { class: 'user' }, content), node);
  answer = { node, text, reasoning, said: '', thought: '' };
  busy(true);
  node.scrollIntoView({ block: 'end' });
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  worker.postMessage({ request: 'ask', messages, limit: number('limit'), temperature: number('temperature'), top_p: number('top-p'), seed, now: Date.now() });
}

$('composer').onsubmit = event => { event.preventDefault(); send(); };
$('input').onkeydown = event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
};
$('stop').onclick = () => worker.postMessage({ request: 'stop' });
$('new').onclick = () => { if (answer) worker.postMessage({ request: 'stop' }); fresh(); };
$('demo').onclick = () => open({ url: DEMO }, 'Demo');
$('file').onchange = () => { const [blob] = $('file').files; if (blob) open({ blob }, blob.name); };
open({ url: DEMO }, 'Demo');
