// A tenant's own page: its limits, its usage, tools to try, and how to connect a client.

import { html, render, useState } from './vendor/preact-htm.js';
import { Header, Problem, SignIn, useData, useSession, useTab } from './shell.js';
import { CallTable, OpenCalls } from './calls.js';
import { Limits, Usage } from './tenants.js';
import { Tools } from './tools.js';

const TABS = [
  { id: 'limits', name: 'Limits and usage' },
  { id: 'calls', name: 'Calls' },
  { id: 'tools', name: 'Tools' },
  { id: 'connect', name: 'Connect' },
];

function Standing({ session }) {
  const { data, error } = useData('/v1/limits', 2000);
  return html`<section class="card"><h2>Limits</h2><${Problem} error=${error} />
      ${data && html`<${Limits} limits=${data.limits} />`}</section>
    <section class="card"><h2>Usage</h2><${Usage} path="/v1/usage" name=${session.tenant} /></section>`;
}

function Calls() {
  const { data, error } = useData('/calls', 3000);
  return html`<section class="card"><h2>Now</h2><${Problem} error=${error} />
      <${OpenCalls} calls=${data?.open} count=${data?.open_count} /></section>
    <section class="card"><h2>Failed, refused and slow calls of the last while</h2>
    <${CallTable} calls=${data?.calls} /></section>`;
}

function Connect() {
  const client = { mcpServers: { trunkline: { type: 'http', url: `${location.origin}/mcp`, headers: { Authorization: 'Bearer YOUR_KEY' } } } };
  const text = JSON.stringify(client, null, 2);
  const curl = `curl -H "Authorization: Bearer YOUR_KEY" \\\n  -d '{}' ${location.origin}/v1/servers/SERVER/tools/TOOL`;
  return html`<section class="card"><h2>Connect an MCP client</h2>
    <p class="hint">Paste this into the client's configuration, with your key. This page does not have it: it knows only that you have shown it.</p>
    <${Snippet} text=${text} /><h2>Call a tool over HTTP</h2><${Snippet} text=${curl} />
    <p><a href="/docs">All of the API, with your own tools</a></p></section>`;
}

function Snippet({ text }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => { await navigator.clipboard.writeText(text); setCopied(true); };
  return html`<pre tabindex="0">${text}</pre><p><button onClick=${copy}>Copy</button> <small role="status">${copied && 'copied'}</small></p>`;
}

function App() {
  const [session, setSession] = useSession();
  const tab = useTab(TABS);
  if (!session) return null;
  if (!session.signed_in) {
    return html`<${SignIn} session=${session} onSession=${setSession} what="Your key"
      how="The operator of this gateway gives you one: tl_…" />`;
  }
  return html`<${Header} tabs=${TABS} tab=${tab} state="" session=${session} onSession=${setSession} />
    <main><h1 class="hidden">${TABS.find((it) => it.id === tab).name}</h1>
      ${tab === 'limits' && html`<${Standing} session=${session} />`}
      ${tab === 'calls' && html`<${Calls} />`}
      ${tab === 'tools' && html`<${Tools} />`}
      ${tab === 'connect' && html`<${Connect} />`}</main>`;
}

render(html`<${App} />`, document.getElementById('page'));
