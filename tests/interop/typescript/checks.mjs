// The checks that every TypeScript client runs, in the order of all the other clients.
//
// A client is a function `connect(url)` that gives a session: `version`, `tools`, `call`, `resources`, `templates`,
// `read`, `prompts`, `prompt`, `complete` and `close`. A session that is `oneShot` makes a connection for each of them:
// it cannot follow, cancel or complete anything, and calls only what the server lists.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [base, expectedFile, era = "legacy", checks = "all"] = process.argv.slice(2);
const expected = JSON.parse(readFileSync(expectedFile, "utf8"));

/** Longer than any check should take: a check that hangs fails. */
const CHECK_MS_MAX = 30_000;

export { era, expected };

export async function run(connect) {
  let failed = 0;
  const checkAt = (endpoint) => async (name, work) => {
    try {
      await within(CHECK_MS_MAX, Promise.resolve(work()));
      console.log(`ok ${endpoint.path} ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL ${endpoint.path} ${name}: ${String(error?.message ?? error).slice(0, 300)}`);
    }
  };
  if (checks === "connects") {
    await runConnects(connect, checkAt(expected.connects));
    process.exit(failed ? 1 : 0);
  }
  for (const endpoint of expected.endpoints) {
    const check = checkAt(endpoint);
    let session;
    await check("connect", async () => {
      session = await connect(base + endpoint.path);
      same(session.version, expected.versions[era]);
    });
    if (session) await checkEndpoint(endpoint, session, check);
  }
  process.exit(failed ? 1 : 0);
}

/** Connects again and again and lists each time, as a tenant that may call once a second. Then it calls. */
async function runConnects(connect, check) {
  const { path, servers, times } = expected.connects;
  for (let n = 0; n < times; n += 1) {
    await check(`connect ${n} and list`, async () => {
      const session = await connect(base + path);
      includesAll(await session.tools(), expected.tools[servers[0]]);
      if (n + 1 === times) await check("call", async () => same((await session.call("echo", { text: "one" })).text, "one"));
      await session.close();
    });
  }
}

async function checkEndpoint(endpoint, session, check) {
  const has = (server) => endpoint.servers.includes(server);
  const named = (server, name) => (endpoint.prefixed ? `${server}__${name}` : name);
  const located = (server, uri) => (endpoint.prefixed ? `trunkline:${server}/${uri}` : uri);
  const call = (server, tool, args, options) => session.call(named(server, tool), args, options);
  const echo = async (text) => same((await call("std", "echo", { text })).text, text);

  await check("tools", async () => {
    const wanted = endpoint.servers.flatMap((server) => expected.tools[server].map((tool) => named(server, tool)));
    includesAll(await session.tools(), wanted);
  });

  for (const { server, tool, arguments: args, says } of expected.calls.filter((it) => has(it.server))) {
    await check(`call ${server} ${tool}`, async () => {
      const result = await call(server, tool, args);
      same(result.isError, false);
      contains(result.text, says);
    });
  }

  if (has("std")) {
    await check("unicode", () => echo(expected.unicode));

    await check("tool error", async () => {
      const result = await call("std", "fail", { message: "no luck" });
      same(result.isError, true);
      contains(result.text, "no luck");
    });
  }

  if (!session.oneShot) {
    await check("unknown tool", async () => {
      const error = await rejection(call(endpoint.servers[0], "no_such_tool", {}));
      same(error.code, expected.unknown_tool_code);
    });
  }

  if (!session.oneShot && has(expected.progress.server)) {
    await check("progress", async () => {
      const { server, tool, arguments: args } = expected.progress;
      const seen = [];
      await call(server, tool, args, { onprogress: ({ progress }) => seen.push(progress) });
      if (seen.length < 2 || seen.some((it, i) => i > 0 && it <= seen[i - 1])) throw new Error(`progress was ${seen}`);
    });
  }

  if (!session.oneShot && has("std")) {
    await check("cancel", async () => {
      const { server, tool, arguments: args } = expected.cancel;
      await rejection(within(5_000, call(server, tool, args, { signal: AbortSignal.timeout(200) })));
      await echo("still here");
    });

    await check("large", async () => {
      const text = "0123456789abcdef".repeat(expected.large_bytes / 16);
      if ((await call("std", "echo", { text })).text !== text) throw new Error("came back changed");
    });

    await check("parallel", () => {
      const numbers = Array.from({ length: expected.parallel }, (_, i) => `number ${i}`);
      return Promise.all(numbers.map(echo));
    });
  }

  if (has(expected.resource.server)) {
    const { server, uri, says, template, expanded, expanded_says } = expected.resource;
    await check("resources", async () => {
      includesAll(await session.resources(), [located(server, uri)]);
      contains(await session.read(located(server, uri)), says);
    });
    await check("templates", async () => {
      includesAll(await session.templates(), [located(server, template)]);
      contains(await session.read(located(server, expanded)), expanded_says);
    });
  }

  if (has(expected.prompt.server)) {
    const { server, name, arguments: args, says } = expected.prompt;
    await check("prompt", async () => {
      includesAll(await session.prompts(), [named(server, name)]);
      contains(await session.prompt(named(server, name), args), says);
    });
  }

  if (!session.oneShot && has(expected.prompt.server)) {
    await check("complete", async () => {
      for (const { server, prompt, argument, value, context, values } of expected.complete) {
        const ref = { type: "ref/prompt", name: named(server, prompt) };
        same(String(await session.complete(ref, { name: argument, value }, context)), String(values));
      }
      const { server, argument, value, values } = expected.complete_template;
      const ref = { type: "ref/resource", uri: located(server, expected.resource.template) };
      same(String(await session.complete(ref, { name: argument, value })), String(values));
    });
  }

  await check("close", () => session.close());
}

class HangError extends Error {}

async function rejection(promise) {
  const result = await promise.then((it) => it, (error) => ({ error }));
  if (!result.error) throw new Error(`no error, but ${JSON.stringify(result).slice(0, 200)}`);
  if (result.error instanceof HangError) throw result.error;
  return result.error;
}

async function within(ms, promise) {
  const timer = new AbortController();
  const late = sleep(ms, undefined, { signal: timer.signal }).then(() => {
    throw new HangError(`nothing after ${ms} ms`);
  });
  late.catch(() => {});
  return Promise.race([promise, late]).finally(() => timer.abort());
}

function same(actual, wanted) {
  if (actual !== wanted) throw new Error(`${JSON.stringify(actual)} is not ${JSON.stringify(wanted)}`);
}

function contains(text, part) {
  if (!text.includes(part)) throw new Error(`${JSON.stringify(text).slice(0, 200)} has no ${JSON.stringify(part)}`);
}

function includesAll(names, wanted) {
  const missing = wanted.filter((name) => !names.includes(name));
  if (missing.length) throw new Error(`missing ${missing} in ${names}`);
}
