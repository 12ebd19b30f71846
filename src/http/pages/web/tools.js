// A form made from a tool's schema, and the result of trying it.

import { html, useState } from './vendor/preact-htm.js';
import { api } from './api.js';
import { Problem, useData } from './shell.js';

export function Tools() {
  const { data, error } = useData('/v1/servers', 10_000);
  const [server, setServer] = useState(null);
  if (!data) return html`<${Problem} error=${error} />`;
  const chosen = server ?? data.servers.find((it) => it.state === 'ready')?.id ?? data.servers[0]?.id;
  return html`<section class="card"><h2>Try a tool</h2>
    <div class="bar"><label for="server">server</label><select id="server" value=${chosen} onChange=${(event) => setServer(event.target.value)}>
      ${data.servers.map((it) => html`<option key=${it.id} value=${it.id}>${it.id}</option>`)}</select>
      <span class="hint">A call here counts like any other.</span></div>
    ${chosen && html`<${ToolList} key=${chosen} server=${chosen} />`}</section>`;
}

function ToolList({ server }) {
  const { data, error } = useData(`/v1/servers/${server}/tools`);
  const [name, setName] = useState(null);
  if (!data) return html`<${Problem} error=${error} />`;
  const tool = data.tools.find((it) => it.name === name) ?? data.tools[0];
  if (!tool) return html`<p class="empty">There is no tool that you may call.</p>`;
  return html`<div class="bar"><label for="tool">tool</label><select id="tool" value=${tool.name} onChange=${(event) => setName(event.target.value)}>
      ${data.tools.map((it) => html`<option key=${it.name} value=${it.name}>${it.name}</option>`)}</select></div>
    ${tool.description && html`<p class="hint">${tool.description}</p>`}
    <${ToolForm} key=${tool.name} path=${`/v1/servers/${server}/tools/${encodeURIComponent(tool.name)}`} tool=${tool} />`;
}

// A field for each simple member; JSON for all others. The call goes to `path`.
export function ToolForm({ path, tool }) {
  const members = Object.entries(tool.inputSchema?.properties ?? {});
  const required = new Set(tool.inputSchema?.required ?? []);
  const [answer, setAnswer] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const given = {};
    try {
      for (const [name, schema] of members) {
        const value = read(form.get(name), schema, required.has(name));
        if (value !== undefined) given[name] = value;
      }
    } catch (error) {
      return setAnswer({ problem: error.message });
    }
    const began = performance.now();
    try {
      const result = await api(path, { method: 'POST', body: given });
      setAnswer({ result, took: performance.now() - began });
    } catch (error) {
      setAnswer({ problem: `${error.code ?? error.status}: ${error.message}` });
    }
    return undefined;
  };
  return html`<form class="tool" onSubmit=${submit}>
    ${members.map(([name, schema]) => html`<${Field} key=${name} name=${name} schema=${schema} required=${required.has(name)} />`)}
    <button class="primary">Call</button>
    ${answer?.problem && html`<p class="problem" role="alert">${answer.problem}</p>`}
    ${answer?.result && html`<p class="hint" role="status">${answer.result.isError ? 'The tool reports a failure' : 'Done'} in ${Math.round(answer.took)} ms.</p>
      <pre tabindex="0">${JSON.stringify(answer.result, null, 2)}</pre>`}
  </form>`;
}

function Field({ name, schema, required }) {
  const id = `field-${name}`;
  const about = schema.description ?? '';
  let field;
  if (Array.isArray(schema.enum)) {
    field = html`<select id=${id} name=${name}>${!required && html`<option value=""></option>`}
      ${schema.enum.map((value) => html`<option key=${value} value=${JSON.stringify(value)}>${String(value)}</option>`)}</select>`;
  } else if (schema.type === 'boolean') {
    field = html`<select id=${id} name=${name}><option value=""></option><option value="true">true</option><option value="false">false</option></select>`;
  } else if (schema.type === 'integer' || schema.type === 'number') {
    field = html`<input id=${id} name=${name} type="number" step=${schema.type === 'integer' ? '1' : 'any'} required=${required} />`;
  } else if (schema.type === 'string') {
    field = html`<input id=${id} name=${name} required=${required} />`;
  } else {
    field = html`<textarea id=${id} name=${name} rows="3" placeholder="JSON" required=${required}></textarea>`;
  }
  return html`<div class="field"><label for=${id}>${name}${required ? '' : html` <small>optional</small>`}</label>${field}<small>${about}</small></div>`;
}

function read(text, schema, required) {
  if (text === null || (text === '' && !(required && schema.type === 'string'))) return undefined;
  if (Array.isArray(schema.enum)) return JSON.parse(text);
  if (schema.type === 'string') return text;
  return JSON.parse(text);
}
