// The official TypeScript SDK's client, and its package for tasks, use extensions through the gateway:
// `node extensions.mjs PACKAGES URL`. Prints nothing unless something is wrong.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, base] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const load = (name) => {
  // Not all of these packages can be required; `import` takes the same file.
  const [, owner, path] = name.match(/^(@[^/]+\/[^/]+)\/?(.*)$/);
  const root = `${packages}/node_modules/${owner}`;
  const target = require(`${root}/package.json`).exports[path ? `./${path}` : "."];
  const found = target.import?.default ?? target.import ?? target.default;
  return import(pathToFileURL(`${root}/${found}`).href);
};
const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
const tasks = await load("@modelcontextprotocol/ext-tasks/client");

const clientInfo = { name: "extensions", version: "1" };
const ui = { mimeTypes: ["text/html;profile=mcp-app"] };
const clientCapabilities = {
  elicitation: { form: {} },
  extensions: { "io.modelcontextprotocol/tasks": {}, "io.modelcontextprotocol/ui": ui },
};
const anything = { "~standard": { version: 1, vendor: "any", validate: (value) => ({ value }) } };

async function at(path, use) {
  const client = new Client(clientInfo, { capabilities: clientCapabilities, versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(base + path)));
  assert.equal(client.getProtocolEra(), "modern", path);
  await use(client, path);
  await client.close();
}

let last = 0;
const dispatch = (path) => async (request) => {
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": request.method,
  };
  const name = request.params?.taskId ?? request.params?.name;
  if (name) headers["mcp-name"] = name;
  const body = JSON.stringify({ jsonrpc: "2.0", id: ++last, ...request });
  return (await fetch(base + path, { method: "POST", headers, body })).json();
};

const task = (tool, input, words) => async (client, path) => {
  const v2RequestFraming = { protocolVersion: "2026-07-28", clientInfo, clientCapabilities };
  const options = { endpointId: path, rawDispatch: dispatch(path), v2RequestFraming };
  const session = tasks.createTaskSessionFromClient(client, options);
  const execution = await session.callTool(tool, input);
  assert.equal(execution.kind, "task", `${path} ${tool}`);
  const { outcome } = await execution.settle();
  assert.equal(tasks.resultFromTaskOutcome(outcome).content[0].text, words, `${path} ${tool}`);
  await session.close();
};

const skills = (prefix) => async (client) => {
  const { skills } = await client.request({ method: "skills/list", params: {} }, anything);
  assert.deepEqual(skills.map((it) => it.uri), [`${prefix}git-workflow/SKILL.md`, `${prefix}pdf/SKILL.md`]);
  const { skill } = await client.request({ method: "skills/get", params: { uri: skills[0].uri } }, anything);
  for (const file of skill.resources) {
    const { contents } = await client.readResource({ uri: file.uri });
    assert.equal(contents[0].text.length, file.size, file.uri);
  }
};

const app = async (client, path) => {
  const { tools } = await client.listTools();
  const tool = tools.find((it) => it._meta?.ui?.resourceUri);
  const { contents } = await client.readResource({ uri: tool._meta.ui.resourceUri });
  assert.equal(contents[0].mimeType, ui.mimeTypes[0], path);
  assert.ok(!(await client.callTool({ name: tool.name, arguments: {} })).isError, path);
};

await at("/mcp/tasks", task("slow_compute", { seconds: 1 }, "computed for 1 s"));
await at("/mcp", task("tasks__slow_compute", { seconds: 1 }, "computed for 1 s"));
await at("/mcp/t/all", task("tasks__slow_compute", { seconds: 1 }, "computed for 1 s"));
await at("/mcp/std", task("sleep", { ms: 1000 }, "slept 1000 ms"));
await at("/mcp", task("std__sleep", { ms: 1000 }, "slept 1000 ms"));
await at("/mcp/t/all", task("std__sleep", { ms: 1000 }, "slept 1000 ms"));
await at("/mcp/skills", skills("skill://"));
await at("/mcp", skills("skill://skills/"));
for (const path of ["/mcp/app", "/mcp", "/mcp/t/all"]) await at(path, app);
