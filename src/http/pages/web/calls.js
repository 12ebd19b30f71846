// Calls of the last while that failed, were refused or were slow; and why.

import { html, useState } from './vendor/preact-htm.js';
import { clockTime, span } from './api.js';
import { Problem, useData } from './shell.js';
import { Tenant } from './trunk.js';

const KINDS = [['', 'all'], ['failed', 'failed'], ['refused', 'refused'], ['slow', 'slow']];

export function Calls() {
  const [kind, setKind] = useState('');
  const [search, setSearch] = useState('');
  const [tenant, setTenant] = useState('');
  const query = new URLSearchParams({ limit: 200 });
  if (kind) query.set('kind', kind);
  if (search.trim()) query.set('search', search.trim());
  if (tenant.trim()) query.set('tenant', tenant.trim());
  const { data, error } = useData(`/admin/v1/calls/recent?${query}`, 3000);
  return html`<div class="card">
    <form class="bar" role="search" onSubmit=${(event) => event.preventDefault()}>
      <div role="group" aria-label="kind">${KINDS.map(([id, name]) => html`
        <button key=${id} type="button" class="chip" aria-pressed=${kind === id} onClick=${() => setKind(id)}>${name}</button>${' '}`)}</div>
      <label>call id or label <input value=${search} onInput=${(event) => setSearch(event.target.value)} /></label>
      <label>tenant <input value=${tenant} onInput=${(event) => setTenant(event.target.value)} /></label>
    </form>
    <${Problem} error=${error} />
    <${CallTable} calls=${data?.calls} admin=${true} />
  </div>`;
}

// A tenant's own calls that wait or run, the oldest first.
export function OpenCalls({ calls, count }) {
  if (!calls) return null;
  if (calls.length === 0) return html`<p class="empty">No call waits or runs.</p>`;
  return html`<table><thead><tr><th>state</th><th>server</th><th>tool</th><th class="n">for</th><th>labels</th><th>call</th></tr></thead>
    <tbody>${calls.map((call) => html`<tr key=${call.id}>
      <td>${call.state}</td><td>${call.server}</td><td>${call.tool}</td><td class="n">${span(Date.now() - Date.parse(call.since))}</td>
      <td>${call.labels.join(' ')}</td><td><code>${call.id}</code></td></tr>`)}</tbody></table>
    ${count > calls.length && html`<p class="hint">and ${count - calls.length} more</p>`}`;
}

// Calls that have ended; each can be opened to be explained.
export function CallTable({ calls, admin }) {
  const [open, setOpen] = useState(null);
  if (!calls) return null;
  if (calls.length === 0) return html`<p class="empty">No such call in the last while.</p>`;
  return html`<table><thead><tr>
      <th>ended</th>${admin && html`<th>tenant</th>`}<th>server</th><th>tool</th><th>outcome</th><th class="n">waited</th><th class="n">ran</th><th>executed</th><th>call</th></tr></thead>
    <tbody>${calls.map((call) => html`<${Ended} key=${call.id} call=${call} admin=${admin} open=${open === call.id}
      onOpen=${() => setOpen(open === call.id ? null : call.id)} />`)}</tbody></table>`;
}

function Ended({ call, admin, open, onOpen }) {
  const bad = call.outcome === 'error' || call.outcome === 'cancelled';
  return html`<tr>
      <td>${clockTime(call.ended)}</td>${admin && html`<td><${Tenant} name=${call.tenant} /></td>`}<td>${call.server}</td><td>${call.tool}</td>
      <td class=${bad ? 'bad-text' : ''}>${call.code ?? call.outcome}</td>
      <td class="n">${span(call.queue_ms)}</td><td class="n">${span(call.backend_ms)}</td><td>${call.executed}</td>
      <td><button class="link" aria-expanded=${open} onClick=${onOpen}><code>${call.id}</code></button></td>
    </tr>
    ${open && html`<tr><td colspan=${admin ? 9 : 8}><${Explanation} id=${call.id} api=${admin ? '/admin/v1' : '/v1'} /></td></tr>`}`;
}

// How the gateway decided about a call, and what would have let it through.
export function Explanation({ id, api = '/admin/v1' }) {
  const { data, error } = useData(`${api}/calls/${id}/explain`);
  if (error) return html`<p class="empty">There is no explanation: ${error}</p>`;
  if (!data) return null;
  const { call, limits, queue, attempts, would_have_passed: ways } = data;
  return html`<div class="explanation">
    <p>${call.outcome === 'error' ? `Refused or failed with ${call.code}` : call.outcome}; executed: ${call.executed};
      key ${call.key ?? 'none'}${call.labels.length > 0 && ` · ${call.labels.join(' ')}`}</p>
    ${limits.length > 0 && html`<h3>Limits, in the order in which they are asked</h3>
      <table class="list"><thead><tr><th>limit</th><th>of</th><th class="n">used</th><th class="n">of at most</th><th>said</th></tr></thead>
      <tbody>${limits.map((limit) => html`<tr key=${limit.rule + limit.scope}><td>${limit.rule}</td><td>${limit.scope}</td>
        <td class="n">${limit.used}</td><td class="n">${limit.max}</td>
        <td class=${limit.verdict === 'refused' ? 'bad-text' : ''}>${limit.verdict.replace('_', ' ')}</td></tr>`)}</tbody></table>`}
    ${queue && html`<p>It waited ${span(queue.waited_ms)} for a slot: ${queue.ahead.own} of its tenant's calls and
      ${queue.ahead.others} of others were there before; ${queue.slots.taken} of ${queue.slots.all} slots were taken, ${queue.slots.own} by its tenant.</p>`}
    ${attempts.map((attempt, n) => html`<p key=${n}>Attempt ${n + 1} went to instance ${attempt.instance} after ${span(attempt.dispatched_after_ms)}: ${attempt.why}.</p>`)}
    ${ways.length > 0 && html`<h3>Any of these would have let it through</h3>
      <ul>${ways.map((way) => html`<li key=${way.text}>${way.text}</li>`)}</ul>`}
  </div>`;
}
