// What is written, and attached, before it is sent.

import { ask, halt, running } from './answers.js';
import { state } from './chats.js';
import { $, bytes, el, grow, icon, iconButton, setIcon, toast } from './dom.js';
import { emit, on } from './events.js';
import { viewFile } from './dialogs.js';

/* An attachment is part of a prompt: 128 kB are some 40,000 tokens. A browser keeps 5 MB for all conversations. */
const MOST_BYTES = 128e3, MOST_FILES = 8;
/* A text that is pasted and longer than two screens of a desktop would hide what is written around it: it becomes an attachment. */
const LONG_PASTE = 4000;

let files = [];
/* What stands in the field now. */
export const draft = () => ({ content: $('input').value.trim(), files });
const drafts = new Map();   // what was not sent, by conversation

export const chip = (file, ...more) => el('span', { class: 'chip' }, icon('file'), el('button', { type: 'button', title: `Show ${file.name}`, onclick: () => viewFile(file) }, file.name), el('small', {}, bytes(file.text.length)), ...more);

function drawFiles() {
  $('chips').replaceChildren(...files.map(file => chip(file, iconButton('close', `Remove ${file.name}`, () => {
    files = files.filter(other => other !== file);
    drawFiles();
    $('input').focus();
  }))));
  $('chips').hidden = !files.length;
  buttons();
  emit('draft');
}
/* The text of a file; throws with words for a person where it is none, or too long. */
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; an attachment may have ${bytes(MOST_BYTES)}.`);
  let text;
  try { text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer()); } catch { text = '\0'; }
  if (text.includes('\0')) throw new Error(`${file.name} is not text: the model reads nothing else.`);
  return text.replace(/\r\n?/g, '\n');
}
async function attach(list) {
  for (const file of list) {
    if (files.length >= MOST_FILES) { toast(`A message may have ${MOST_FILES} attachments.`); break; }
    try { files.push({ name: file.name, text: await textOf(file) }); } catch (error) { toast(error.message); }
  }
  drawFiles();
}
/* Puts something into the field, where nothing is yet. */
export function compose(content, attached = []) {
  if ($('input').value || files.length) return;
  $('input').value = content;
  files = [...attached];
  drawFiles();
  grow($('input'));
  $('input').focus();
}
function buttons() {
  const busy = running.has(state.chat.id), send = $('send');
  send.classList.toggle('stop', busy);
  setIcon(send, busy ? 'stop' : 'up');
  send.title = busy ? 'Stop' : 'Send';
  send.setAttribute('aria-label', send.title);
  send.disabled = !busy && !$('input').value.trim() && !files.length;
}
function submit() {
  const content = $('input').value.trim();
  if (running.has(state.chat.id) || !content && !files.length) return;
  const attached = files;
  $('input').value = '';
  files = [];
  drawFiles();
  grow($('input'));
  ask(state.chat, content, attached);
}

let drafted = null;
on('shown', () => {
  if (drafted !== state.chat.id) {
    if (drafted) drafts.set(drafted, { text: $('input').value, files });
    const draft = drafts.get(drafted = state.chat.id);
    $('input').value = draft?.text ?? '';
    files = draft?.files ?? [];
    grow($('input'));
  }
  drawFiles();
});
on('answer', buttons);
on('chats', buttons);

$('input').addEventListener('input', () => { grow($('input')); buttons(); emit('draft'); });
$('input').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
$('composer').addEventListener('submit', event => {
  event.preventDefault();
  if (running.has(state.chat.id)) halt(state.chat); else submit();
});
$('attach').onclick = () => $('files').click();
$('files').onchange = async () => { await attach($('files').files); $('files').value = ''; $('input').focus(); };
$('input').addEventListener('paste', event => {
  const { files: pasted } = event.clipboardData, text = event.clipboardData.getData('text/plain');
  if (!pasted.length && text.length <= LONG_PASTE) return;
  event.preventDefault();
  attach(pasted.length ? pasted : [new File([text], 'pasted.txt')]);
  if (!pasted.length) toast('The long text is attached', 'Into the message', () => intoMessage(text));
});
/* A text that was attached stands where the cursor is instead. */
function intoMessage(text) {
  const at = files.findLastIndex(file => file.name === 'pasted.txt');
  if (at >= 0) files.splice(at, 1);
  $('input').setRangeText(text, $('input').selectionStart, $('input').selectionEnd, 'end');
  grow($('input'));
  drawFiles();
  $('input').focus();
}
/* A file that is dropped anywhere is an attachment: a browser would leave the page for it. */
const main = document.querySelector('main'), carries = event => [...event.dataTransfer.types].includes('Files');
addEventListener('dragover', event => { if (carries(event)) { event.preventDefault(); main.classList.add('dropping'); } });
addEventListener('dragleave', event => { if (event.relatedTarget === null) main.classList.remove('dropping'); });
addEventListener('drop', event => {
  if (!carries(event)) return;
  event.preventDefault();
  main.classList.remove('dropping');
  attach(event.dataTransfer.files);
});
