// Servers: their instances, last failures and tools; held definitions; and the changes that an
// operator makes to them.

import { html, useState } from './vendor/preact-htm.js';
import { api, clockTime, span } from './api.js';
import { Problem, Verb, useData } from './shell.js';
import { ToolForm } from './tools.js';

export function Servers({ live }) {
  const { data, error, again } = useData('/admin/v1/servers', 3000);
  const [open, setOpen] = useState(null);
  if (!data) return html`<${Problem} error=${error} />`;
  return html`<div>
    <${Problem} error=${error} />
    ${data.servers.map((server) => html`<${Server} key=${server.id} server=${server} live=${live} again=${again}
      open=${open === server.id} onOpen=${() => setOpen(open === server.id ? null : server.id)} />`)}
  </div>`;
}

function tone(state) {
  return { ready: 'good', per_tenant: 'good', per_session: 'good', idle: 'idle', starting: 'warn', draining: 'warn' }[state] ?? 'bad';
}

function since(at) {
  return at ? span(Date.now() - Date.parse(at)) : '–';
}

function Server({ server, live, open, onOpen, again }) {
  const head = live.server(server.id)?.head;
  const paused = head?.paused ?? false;
  const verb = async (path, body) => { await api(path, { method: 'POST', body }); again(); };
  const path = `/admin/v1/servers/${server.id}`;
  const starts = server.instances?.reduce((sum, it) => sum + Math.max(0, it.starts - 1), 0) ?? 0;
  return html`<section class="card" aria-label=${server.id}>
    <div class="bar">
      <h2>${server.id}</h2>
      <span class=${`state ${paused ? 'warn' : tone(server.state)}`}>${paused ? 'paused' : server.state.replace('_', ' ')}</span>
      <span class="hint">${server.since ? `for ${since(server.since)}` : ''}
        ${server.tools != null && ` · ${server.tools} tools`} ${server.ready != null && ` · ${server.ready} of ${server.instance_count} instances ready`}
        ${starts > 0 && ` · ${starts} restarts`} ${server.held > 0 && html` · <b class="warn-text">${server.held} held</b>`}</span>
      <span>${paused
        ? html`<${Verb} name="resume" ask="Give its callers slots again?" act=${() => verb(`${path}/resume`)} />`
        : html`<${Verb} name="pause" ask="Callers will wait until their deadlines." act=${() => verb(`${path}/pause`)} />`}</span>
      <button class="quiet" aria-expanded=${open} onClick=${onOpen}>${open ? 'hide tools' : 'tools'}</button>
    </div>
    ${server.reason && html`<p class="bad-text">${server.reason}${server.down_since && ` (down for ${since(server.down_since)})`}</p>`}
    ${(server.instances ?? []).length > 0 && html`<table><thead><tr><th>instance</th><th>state</th><th>for</th><th class="n">starts</th><th class="n">calls</th><th>last failure</th><th></th></tr></thead>
      <tbody>${server.instances.map((instance, n) => html`<${Instance} key=${n} n=${n} instance=${instance}
        onReplace=${() => verb(`${path}/instances/${n}/replace`)} />`)}</tbody></table>`}
    ${server.processes?.map((process) => html`<p key=${process.tenant + (process.session ?? '')} class="hint">
      ${process.tenant}${process.session && `, session ${process.session}`}: ${process.state}
      ${process.instances[0]?.last_failure && html`<${Failure} failure=${process.instances[0].last_failure} />`}</p>`)}
    ${server.held > 0 && html`<${Held} server=${server.id} again=${again} />`}
    ${open && html`<${Tools} server=${server.id} />`}
  </section>`;
}

function Instance({ n, instance, onReplace }) {
  const [open, setOpen] = useState(false);
  const failure = instance.last_failure;
  const lines = instance.stderr ?? [];
  return html`<tr>
      <td>${n}</td><td><span class=${`state ${tone(instance.state)}`}>${instance.state}</span>${instance.stalled_since && html` <b class="warn-text">stalled</b>`}${instance.looks_serial && ' (answers one at a time)'}</td>
      <td>${since(instance.since)}</td><td class="n">${instance.starts}</td>
      <td class="n">${instance.in_flight ?? '–'}${instance.limit != null && ` / ${instance.limit}`}</td>
      <td>${failure ? html`${clockTime(failure.at)} ${failure.detail}` : 'none'}
        ${(failure || lines.length > 0) && html` <button class="quiet" aria-expanded=${open} onClick=${() => setOpen(!open)}>last lines</button>`}</td>
      <td>${instance.state === 'ready' && html`<${Verb} name="replace" ask="Start another, and drain this one?" act=${onReplace} />`}</td>
    </tr>
    ${open && html`<tr><td colspan="7">
      ${failure && html`<${Failure} failure=${failure} />`}
      ${lines.length > 0 && html`<h3>Last lines now</h3><pre tabindex="0">${lines.join('\n')}</pre>`}</td></tr>`}`;
}

function Failure({ failure }) {
  return html`<h3>${clockTime(failure.at)}: ${failure.detail}</h3>
    ${failure.stderr.length > 0 ? html`<pre tabindex="0">${failure.stderr.join('\n')}</pre>` : html`<p class="hint">It wrote nothing on standard error.</p>`}
    ${failure.stdout?.length > 0 && html`<p>On standard output, before its handshake, these lines were no messages:</p>
      <pre tabindex="0">${failure.stdout.join('\n')}</pre>`}`;
}

// Definitions that are held back, with what has changed in them.
function Held({ server, again }) {
  const { data, error, again: reload } = useData(`/admin/v1/servers/${server}/pins`, 10_000);
  if (!data) return html`<${Problem} error=${error} />`;
  const held = data.pins.filter((pin) => pin.state === 'held' || pin.state === 'new');
  const approve = (hash) => async () => {
    await api(`/admin/v1/servers/${server}/pins`, { method: 'POST', body: { approve: [hash] } });
    reload();
    again();
  };
  return html`<h3>Held definitions</h3>${held.map((pin) => html`<div key=${pin.hash} class="held">
    <p><b>${pin.tool}</b> <small>${pin.state}</small> <code>${pin.hash.slice(0, 16)}</code>
      <${Verb} name="approve" ask="Let tenants call it as it is defined now?" act=${approve(pin.hash)} /></p>
    ${pin.diff && html`<pre tabindex="0">${pin.diff}</pre>`}</div>`)}`;
}

function Tools({ server }) {
  const { data, error } = useData(`/admin/v1/servers/${server}/tools`);
  const [tried, setTried] = useState(null);
  if (error) return html`<p class="empty">${error}</p>`;
  if (!data) return null;
  return html`<h3>Tools</h3><table class="list"><tbody>${data.tools.map((tool) => html`<tr key=${tool.name}>
    <td><code>${tool.name}</code></td><td>${tool.title ?? ''}</td><td>${tool.description ?? ''}</td>
    <td><button class="quiet" aria-expanded=${tried === tool.name} aria-label=${`try ${tool.name}`}
      onClick=${() => setTried(tried === tool.name ? null : tool.name)}>try</button></td></tr>
    ${tried === tool.name && html`<tr key=${`${tool.name}!`}><td colspan="4"><${Try} server=${server} tool=${tool} /></td></tr>`}`)}</tbody></table>`;
}

// A call needs a tenant, whose rights and limits it has.
function Try({ server, tool }) {
  const { data, error } = useData('/admin/v1/tenants');
  const [tenant, setTenant] = useState('');
  if (!data) return html`<${Problem} error=${error} />`;
  const list = `tenants-${server}-${tool.name}`;
  const path = `/admin/v1/tenants/${encodeURIComponent(tenant)}/servers/${server}/tools/${encodeURIComponent(tool.name)}`;
  return html`<div class="bar"><label>call as tenant <input list=${list} value=${tenant} required
      onInput=${(event) => setTenant(event.target.value.trim())} /></label>
      <datalist id=${list}>${data.tenants.slice(0, 200).map((it) => html`<option key=${it.id} value=${it.id}></option>`)}</datalist>
      <span class="hint">The tenant's rights and limits hold, its usage counts the call, and the audit log names you.</span></div>
    ${tenant && html`<${ToolForm} path=${path} tool=${tool} />`}`;
}
