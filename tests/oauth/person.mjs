// A person in a browser: signs in at the gateway with a tenant's key, agrees, signs in at the
// authorization server, and comes back. person.mjs GATEWAY SERVER KEY NAME
const [gateway, server, key, name] = process.argv.slice(2);

// A jar for each origin, by name: the paths of cookies do not matter here.
const jars = new Map();
async function visit(url, options = {}) {
  const { origin } = new URL(url);
  const jar = jars.get(origin) ?? new Map();
  jars.set(origin, jar);
  const cookie = [...jar].map(([name, value]) => `${name}=${value}`).join("; ");
  const response = await fetch(url, { ...options, redirect: "manual", headers: { ...options.headers, cookie } });
  for (const line of response.headers.getSetCookie()) {
    const [, name, value] = /^([^=]+)=([^;]*)/.exec(line);
    if (value) jar.set(name, value); else jar.delete(name);
  }
  return response;
}
async function ask(path, body) {
  const headers = { "trunkline-page": "1", origin: gateway };
  const response = await visit(gateway + path, { method: "POST", headers, body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${path}: ${response.status} ${text}`);
  return JSON.parse(text);
}

await ask("/me/session", { key });
let { redirect: url } = await ask(`/me/connect/${server}`, {});
// The authorization server leads from page to page.
for (let step = 0; !url.startsWith(`${gateway}/oauth/callback`); step += 1) {
  if (step > 20) throw new Error(`lost at ${url}`);
  let response = await visit(url);
  if (response.status === 200) {
    const page = await response.text();
    const prompt = /name="prompt" value="(\w+)"/.exec(page)?.[1];
    const action = /action="([^"]+)"/.exec(page)?.[1] ?? url;
    if (!prompt) throw new Error(`a page without a form: ${page.slice(0, 2000)}`);
    const body = new URLSearchParams({ prompt, login: name, password: "any" });
    response = await visit(new URL(action, url), { method: "POST", body });
  }
  const location = response.headers.get("location");
  if (!location) throw new Error(`${url}: ${response.status} ${await response.text()}`);
  url = new URL(location, url).href;
}
const back = new URL(url);
const brought = {};
for (const parameter of ["state", "code", "iss", "error"]) {
  if (back.searchParams.has(parameter)) brought[parameter] = back.searchParams.get(parameter);
}
const [, , , named] = back.pathname.split("/");
if (named) brought.server = named;
console.log(JSON.stringify(await ask("/me/callback", brought)));
