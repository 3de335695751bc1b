// The messages of the shown conversation, and what can be done with them.

import { again, ask, halt, proceed, resume, reword, running } from './answers.js';
import { begin, save, state } from './chats.js';
import { before, choose, graft, path, prune, variants } from './conversation.js';
import { $, announce, copy, count, el, grow, icon, iconButton, plainButton, toast } from './dom.js';
import { emit, on } from './events.js';
import { markdown } from './markdown.js';
import { chip, compose } from './composer.js';
import { IDEAS, KINDS, kindOf } from './ideas.js';
import { model, server } from './server.js';

const views = new Map();   // of the messages that are drawn

/* Back and forth between what stands in the same place. */
function switcher(chat, message) {
  const all = variants(chat, message), at = all.indexOf(message);
  if (all.length < 2) return null;
  const what = message.role === 'user' ? 'question' : 'answer';
  const go = (to, label) => {
    choose(chat, all[to]);
    save(chat, false);
    emit('shown', {});
    const there = views.get(all[to])?.querySelector('.variants');
    (there?.querySelector(`[aria-label="${label}"]:not(:disabled)`) ?? there?.querySelector('button:not(:disabled)'))?.focus();
  };
  const back = iconButton('back', `Earlier ${what}`, () => go(at - 1, `Earlier ${what}`)), forth = iconButton('next', `Later ${what}`, () => go(at + 1, `Later ${what}`));
  back.disabled = at === 0;
  forth.disabled = at === all.length - 1;
  return el('span', { class: 'variants', role: 'group', 'aria-label': `${what} ${at + 1} of ${all.length}` }, back, el('span', { 'aria-hidden': 'true' }, `${at + 1}/${all.length}`), forth);
}

/* Takes away a message with what follows it; there is a while to have it back. */
function discard(chat, message) {
  halt(chat);
  const removed = prune(chat, message);
  const drawn = () => { save(chat, false); if (chat === state.chat) { emit('shown', {}); $('input').focus(); } };
  drawn();
  toast(removed.length > 1 ? `${count(removed.length)} messages deleted` : 'Message deleted', 'Undo', () => { halt(chat); graft(chat, removed); drawn(); });
}
const follows = (chat, message) => chat.messages.some(other => other.parent === message.id);
const discarding = (chat, message) => iconButton('trash', follows(chat, message) ? 'Delete with what follows' : 'Delete', () => discard(chat, message));

/* Puts a field in place of the text of a message. `ways` are [label, what is done with what was written], the last one also by Enter. */
function edit(view, { text, tools, pen, content, label, ways, isSent, mayBeEmpty = false }) {
  if (view.classList.contains('editing')) { view.querySelector('textarea').focus(); return; }
  const area = el('textarea', { value: content, 'aria-label': label, oninput: () => grow(area) });
  const done = () => { view.classList.remove('editing'); editor.replaceWith(text); tools.hidden = false; pen.focus(); };
  const act = way => { const written = area.value.trim(); if (!written && !mayBeEmpty) return; done(); way(written); };
  area.addEventListener('keydown', event => {
    if (event.key === 'Escape') { event.stopPropagation(); done(); }
    if (event.key === 'Enter' && !event.isComposing && isSent(event)) { event.preventDefault(); act(ways.at(-1)[1]); }
  });
  const buttons = ways.map(([name, way], at) => el('button', { class: at === ways.length - 1 ? 'primary' : 'plain', type: 'button', onclick: () => act(way) }, name));
  const editor = el('div', { class: 'editor' }, area, el('div', {}, plainButton('Cancel', done), ...buttons));
  view.classList.add('editing');
  text.replaceWith(editor);
  tools.hidden = true;
  grow(area);
  area.focus();
}
/* Another text of an answer, in its place; there is a while to have the old one back. */
function rewrite(chat, message, content) {
  const old = { ...message };
  if (content === message.content) return;
  const drawn = () => { save(chat, false); if (chat === state.chat) emit('shown', {}); };
  for (const name of ['error', 'code', 'stopped', 'cut', 'stats']) delete message[name];
  Object.assign(message, { content, edited: true });
  drawn();
  toast('Answer edited', 'Undo', () => { halt(chat); for (const name of Object.keys(message)) delete message[name]; Object.assign(message, old); drawn(); });
}
function userView(chat, message) {
  const text = el('div', { class: 'text', hidden: !message.content }, message.content);
  const files = message.files?.length ? el('div', { class: 'chips' }, ...message.files.map(file => chip(file))) : null;
  const tools = el('div', { class: 'tools' });
  const view = el('div', { class: 'message user', role: 'group', 'aria-label': 'You' }, files, text, tools);
  view.edit = () => edit(view, { text, tools, pen, content: message.content, label: 'Edit message', ways: [['Send', content => reword(chat, message, content)]], isSent: event => !event.shiftKey, mayBeEmpty: !!message.files?.length });
  const copying = iconButton('copy', 'Copy', () => copy(message.content, copying)), pen = iconButton('pen', 'Edit', view.edit);
  tools.append(...[copying, pen, discarding(chat, message), switcher(chat, message)].filter(Boolean));
  return view;
}

/* A new conversation, with what was refused ready to be sent. */
function anew(question) {
  begin();
  compose(question.content, question.files);
}
/* What the server refuses with a code, in words of this page. */
const REFUSALS = {
  context_length_exceeded: "The conversation does not fit the model's context. Edit this message or an earlier one, or begin a new conversation.",
  invalid_api_key: 'This takes an API key that the server accepts.',
  queue_full: 'The server is full: too many requests wait already.', too_many_connections: 'The server is full: too many are connected.', too_many_bodies: 'The server is full: others are sending too much.',
  model_loading: 'The model is still being loaded.',
};
/* What the server says, as a sentence of this page: `names` as code. */
function sentence(text) {
  const parts = text.split(/`([^`]+)`/).map((part, at) => at % 2 ? el('code', {}, part) : part);
  if (parts[0]) parts[0] = parts[0][0].toUpperCase() + parts[0].slice(1);
  return parts;
}
function noticeView(chat, message) {
  const { error, code, content } = message, question = before(chat, message);
  const anewWays = [plainButton('Edit the message', () => views.get(question).edit()), plainButton('New conversation', () => anew(question))];
  const goOn = content && chat.head === message.id ? [plainButton('Continue', () => resume(chat, message))] : [];
  const ways = code === 'context_length_exceeded' ? anewWays : [...goOn, plainButton('Try again', () => again(chat, message))];
  return [icon('alert'), el('span', { title: error }, ...REFUSALS[code] ? [REFUSALS[code]] : sentence(error)), ...ways];
}
const rate = n => n >= 100 ? count(Math.round(n)) : n.toFixed(1);
function statistics({ stats, model }) {
  const { tokens, rate: speed, prompt, cached } = stats ?? {};
  return [model, tokens && `${count(tokens)} tokens`, speed && `${rate(speed)} tok/s`, prompt && `prompt ${count(prompt)}${cached ? ` (${count(cached)} cached)` : ''}`].filter(Boolean).join(' · ');
}
const loadingText = (step, part, sofar) => `The model is being loaded${step ? `: ${step}` : ''}${part === undefined ? '' : `, ${Math.round(part * 100)} %`}${sofar}`;
/* What is waited for: { text, done? }; done goes from 0 to 1. */
function waitingFor({ phase, since }) {
  const seconds = Math.round((Date.now() - since) / 1000), sofar = seconds >= 3 ? `, ${count(seconds)} s` : '';
  switch (phase.kind) {
    case 'queue': return { text: phase.before ? `Waiting: ${phase.before === 1 ? 'one request' : `${count(phase.before)} requests`} before this one${sofar}` : `Next in the queue${sofar}` };
    case 'prompt': return { text: `Reading the prompt: ${count(phase.done)} of ${count(phase.total)} tokens${sofar}`, done: phase.done / phase.total };
    case 'loading': {
      const part = phase.total > 0 ? phase.done / phase.total : undefined;
      return { text: loadingText(phase.what, part, sofar), done: part };
    }
    case 'retry': {
      if (phase.loading) return { text: loadingText(server.step, server.progress ?? undefined, sofar), done: server.progress ?? undefined };
      return { text: `The server is full. Trying again in ${Math.max(1, Math.ceil((phase.until - Date.now()) / 1000))} s` };
    }
    default: return { text: seconds >= 2 ? `Waiting for the first word${sofar}` : '' };
  }
}
function waitingView() {
  const label = el('span'), bar = el('progress', { max: 1, 'aria-label': 'Progress', hidden: true });
  const node = el('div', { class: 'waiting' }, el('span', { class: 'dots', 'aria-hidden': 'true' }, el('i'), el('i'), el('i')), label, bar);
  node.update = run => {
    const { text, done } = waitingFor(run);
    label.textContent = text;
    bar.hidden = done === undefined;
    if (done !== undefined) bar.value = done;
  };
  return node;
}
function thoughtView() {
  const summary = el('span'), text = el('div');
  const node = el('details', { class: 'thought', hidden: true }, el('summary', {}, icon('next'), summary), text);
  node.update = (message, live) => {
    const now = live && !message.content;
    node.hidden = !message.reasoning;
    node.classList.toggle('live', now);
    summary.textContent = now ? 'Thinking' : message.thought ? `Thought for ${Math.max(1, Math.round(message.thought / 1000))} s` : 'Reasoning';
    if (message.reasoning) text.textContent = message.reasoning;
  };
  return node;
}
function answerView(chat, message) {
  const thought = thoughtView(), waiting = waitingView(), body = el('div', { class: 'md' }), note = el('div'), stats = el('span', { class: 'stats' });
  const copying = iconButton('copy', 'Copy', () => copy(message.content, copying));
  const anew = iconButton('again', 'Answer again', () => again(chat, message));
  const onward = iconButton('onward', 'Continue', () => resume(chat, message));
  const away = discarding(chat, message), pen = iconButton('pen', 'Edit the answer', () => view.edit());
  const tools = el('div', { class: 'tools' }, copying, pen, anew, onward, away, switcher(chat, message), stats);
  const view = el('div', { class: 'message assistant', role: 'group', 'aria-label': 'Answer' }, thought, waiting, body, note, tools);
  const ways = [['Save', content => rewrite(chat, message, content)], ['Continue from here', content => proceed(chat, message, content)]];
  view.edit = () => edit(view, { text: body, tools, pen, content: message.content, label: 'Edit the answer', ways, isSent: event => event.ctrlKey || event.metaKey });
  view.update = run => {
    const live = !!run, text = message.content || message.reasoning;
    thought.update(message, live);
    waiting.hidden = !live || run.phase.kind === 'text' || !!text && run.phase.kind === 'sent';
    if (live) waiting.update(run);
    view.setAttribute('aria-busy', live);
    markdown(body, message.content);
    note.className = message.error ? 'notice' : 'muted';
    note.replaceChildren(...message.error ? noticeView(chat, message) : [live ? '' : message.stopped ? 'Stopped' : message.edited && !message.cut ? 'Edited' : message.cut ? 'Cut off at the token limit: Max tokens, or the context' : '']);
    note.hidden = live || !note.textContent;
    stats.textContent = statistics(message);
    copying.hidden = pen.hidden = live || !message.content;
    away.hidden = live;
    anew.hidden = live || !!message.error;
    onward.hidden = live || chat.head !== message.id || !message.content || !(message.stopped || message.cut || message.edited);
  };
  view.update(null);
  return view;
}

/* ---- The log ---- */
let stick = true;
const scroll = $('scroll');
const bottom = () => { scroll.scrollTop = scroll.scrollHeight; };
scroll.addEventListener('scroll', () => {
  stick = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 60;
  $('jump').hidden = stick;
});
$('jump').onclick = () => { stick = true; bottom(); };

function draw({ other = false, follow = false } = {}) {
  const log = $('log'), held = log.contains(document.activeElement), { chat } = state, run = running.get(chat.id);
  views.clear();
  const shown = path(chat);
  for (const message of shown) {
    const view = message.role === 'user' ? userView(chat, message) : answerView(chat, message);
    if (message === shown.at(-1)) view.classList.add('last');
    if (run?.message === message) view.update(run);
    views.set(message, view);
  }
  log.replaceChildren(...views.values());
  $('empty').hidden = shown.length > 0;
  document.title = chat.title ? `${chat.title} – Gristmill` : 'Gristmill';
  if (other || follow) { stick = true; bottom(); }
  // What had the keyboard is gone. A finger would get the screen's keyboard with the field, so it does not.
  if (held || other) $(matchMedia('(hover: none)').matches ? 'scroll' : 'input').focus();
}
/* A block as it is read out: a formula by its source, which says more than its letters in a row. */
function readOut(block) {
  if (!block.querySelector('math')) return block.textContent;
  const copy = block.cloneNode(true);
  for (const math of copy.querySelectorAll('math')) math.replaceWith(math.getAttribute('alttext'));
  return copy.textContent;
}
/* Tells what is waited for, and what is whole of an answer: a screen reader would begin anew with every word. */
function speak(run) {
  const live = running.get(run.chat.id) === run, blocks = [...views.get(run.message)?.querySelector('.md').children ?? []];
  if (run.spoken === undefined) { run.spoken = Math.max(0, run.resumed ? blocks.length - 1 : 0); announce('Answering', true); }
  if (live && run.told !== run.phase.kind) { run.told = run.phase.kind; if (!['sent', 'text'].includes(run.told)) announce(waitingFor(run).text); }
  const whole = live ? blocks.length - 1 : blocks.length;
  for (; run.spoken < whole; run.spoken++) announce(readOut(blocks[run.spoken]));
  if (!live && run.spoken !== null) { announce(run.message.error ? `No answer: ${run.message.error}` : run.message.stopped ? 'Stopped' : 'The answer is complete'); run.spoken = null; }
}
function update(run) {
  if (run.chat !== state.chat) return;
  const view = views.get(run.message);
  if (!view) return;
  const held = view.contains(document.activeElement) && !running.has(run.chat.id);
  view.update(running.get(run.chat.id) === run ? run : null);
  if (held && !view.contains(document.activeElement)) $('input').focus();
  speak(run);
  if (stick) bottom();
}
on('shown', draw);
on('answer', update);
/* Edits the last question, as the up arrow in an empty field does. */
export function editLast() {
  const last = path(state.chat).findLast(message => message.role === 'user');
  if (last) views.get(last).edit();
}
/* What to begin with, by the model. */
function suggest() {
  const kind = kindOf(model()?.id ?? '');
  if ($('ideas').dataset.kind === kind) return;
  $('ideas').dataset.kind = kind;
  $('about').textContent = KINDS[kind];
  $('ideas').replaceChildren(...IDEAS[kind].map(text => el('button', { type: 'button', onclick: () => ask(state.chat, text) }, text)));
}
on('shown', suggest);
on('server', suggest);
