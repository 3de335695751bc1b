// The list of models: each with its size and its state. A button of the header opens it.

import { $, bytes, count, el } from './dom.js';
import { on } from './events.js';
import { toggleMenu } from './menu.js';
import { chooseModel, model, refresh, server } from './server.js';

/* What a model does now: 'loaded', 'loading 25 %', 'available', 'cannot be loaded'. */
export function stateOf({ status }) {
  if (status.failed) return 'cannot be loaded';
  if (status.value === 'loading') return status.total > 0 ? `loading ${Math.floor(100 * status.done / status.total)} %` : 'loading';
  return status.value === 'unloaded' ? 'available' : 'loaded';
}
const stateClass = ({ status }) => status.failed ? 'failed' : status.value;
function label(one) {
  const facts = [one.size && bytes(one.size), one.context && `${count(one.context)} tokens of context`, stateOf(one)].filter(Boolean).join(' · ');
  return el('span', { class: 'model' }, el('b', {}, one.id), el('small', { class: stateClass(one) }, facts));
}
const entries = () => server.models.map(one => ({ icon: one === model() ? 'check' : null, checked: one === model(), label: label(one), act: () => chooseModel(one.id) }));
function draw() {
  const { models } = server, chosen = model(), several = models.length > 1;
  $('model').hidden = several;
  $('models').hidden = !several;
  $('model').textContent = chosen?.id ?? '…';
  if (!several) return;
  $('models').firstElementChild.textContent = chosen.id;
  $('models').setAttribute('aria-label', `Model: ${chosen.id}, ${stateOf(chosen)}`);
  // A list that is open says what is new without closing.
  const open = $('menu').querySelectorAll('.model');
  if (open.length === models.length) models.forEach((one, at) => open[at].replaceWith(label(one)));
}
$('models').onclick = () => { refresh(); toggleMenu($('models'), entries()); };
$('models').addEventListener('keydown', event => {
  if (event.key !== 'ArrowDown' || !$('menu').hidden) return;
  event.preventDefault();
  $('models').click();
});
on('server', draw);
on('shown', draw);
