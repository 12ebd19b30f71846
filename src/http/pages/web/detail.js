// One call, picked from the trunk: while it runs, and what became of it.

import { html, useEffect, useRef } from './vendor/preact-htm.js';
import { api, cellOf, waiterOf } from './api.js';
import { Explanation } from './calls.js';
import { Verb } from './shell.js';
import { CallFacts } from './trunk.js';

export function Detail({ call, live, onClose }) {
  const box = useRef(null);
  useEffect(() => { box.current.focus(); }, [call.id ?? call.key]);
  useEffect(() => {
    const close = (event) => { if (event.key === 'Escape') onClose(); };
    addEventListener('keydown', close);
    return () => removeEventListener('keydown', close);
  }, []);
  const now = find(live, call);
  return html`<aside class="detail" ref=${box} tabindex="-1" aria-label="the picked call">
    <header><h2>${call.tool ?? 'a call'} <small>at ${call.server}</small></h2>
      <button class="quiet" aria-label="close" onClick=${onClose}>✕</button></header>
    <${CallFacts} call=${now ?? call} live=${live} />
    ${now && call.id && html`<div class="verbs"><${Verb} name="cancel" ask="Tell its caller that an operator has cancelled it?"
      act=${() => api(`/admin/v1/calls/${call.id}`, { method: 'DELETE' }).then(() => 'cancelled')} /></div>`}
    ${!now && html`<p class="ended">It has ended, or is out of sight.</p>`}
    ${!now && call.id && html`<${Explanation} id=${call.id} />`}
  </aside>`;
}

// Finds the call where it is now: it may have got its slot, or have ended.
function find(live, call) {
  const server = live.servers.get(call.server);
  if (!server) return null;
  if (!call.id) {
    const cell = server.cells.get(call.key);
    return cell && cell[2] === call.begun ? cellOf(call.key, cell) : null;
  }
  for (const [key, cell] of server.cells) if (cell[4] === call.id) return cellOf(key, cell);
  const waiter = server.line.find((it) => it[3] === call.id);
  return waiter ? waiterOf(waiter) : null;
}
