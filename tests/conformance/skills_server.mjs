// The skills extension of the official TypeScript SDK, over stdio: `node skills_server.mjs PACKAGES SKILLS`.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, skills] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { McpServer } = await load("@modelcontextprotocol/server");
const { serveStdio } = await load("@modelcontextprotocol/server/stdio");
const { loadSkills } = await load("@modelcontextprotocol/server/ext/skills/node");

const catalog = await loadSkills(skills);
serveStdio(() => {
  const server = new McpServer({ name: "skills", version: "1" }, { capabilities: { resources: {}, tools: {} } });
  catalog.attach(server);
  return server;
});
