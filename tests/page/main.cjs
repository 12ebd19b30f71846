// The cases. Each is told what it needs; the first failure ends the run.

const assert = require('node:assert/strict');
const { mkdirSync, mkdtempSync, readFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { chromium } = require('playwright-core');
const { FLAGS, Gateway, hangUp, until } = require('./gateway.cjs');
const { connectTenant } = require('./connect.cjs');
const { twoReplicas } = require('./replicas.cjs');
const { otherPort } = require('./strangers.cjs');
const { tryTool } = require('./tools.cjs');

const [binary, ...options] = process.argv.slice(2);
const option = (name) => (options.includes(name) ? options[options.indexOf(name) + 1] : null);
const pictures = option('--screenshots');
const files = option('--files');
const only = option('--only') ?? '';
const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const WIDE = { width: 1280, height: 860 };

let gateway;
let browser;
// Things that no page may do: break its own policy, fail, or ask another origin.
const faults = [];

// Opens a page; in a browser of its own, with no cookies, if there is to be one.
async function newPage(from = browser, { url, others = [] } = gateway) {
  const page = await from.newPage();
  page.on('pageerror', (error) => faults.push(`error in the page: ${error.stack}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !/status of (4\d\d|503)/.test(message.text())) faults.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    if (![url, ...others].some((it) => request.url().startsWith(it))) faults.push(`asked ${request.url()}`);
  });
  if (files) await page.route('**/web/**', fromDisk);
  await page.addInitScript(() => document.addEventListener('securitypolicyviolation', (event) => {
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
  }));
  return page;
}

// Serves a file of the page as it is on the disk now, with the gateway's own headers.
async function fromDisk(route) {
  const response = await route.fetch();
  const { 'content-encoding': _, 'content-length': __, ...headers } = response.headers();
  const path = new URL(route.request().url()).pathname.split('/web/')[1];
  await route.fulfill({ status: 200, headers, body: readFileSync(join(files, path)) });
}

async function signIn(page, key, path = '/dashboard', { url } = gateway) {
  await page.goto(url + path);
  await page.getByLabel(/key/i).fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

async function tab(page, name) {
  await page.getByRole('navigation', { name: 'views' }).getByRole('link', { name, exact: true }).click();
}

// The rows of a server's list of calls on the trunk.
async function listed(page, server) {
  const row = page.getByRole('region', { name: new RegExp(`^${server}:`) });
  const toggle = row.getByRole('button', { name: 'list', exact: true });
  if (await toggle.count()) await toggle.click();
  return row.locator('tbody tr').evaluateAll((rows) => rows.map((it) => [...it.cells].map((cell) => cell.textContent.trim())));
}

async function accessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
  const found = violations.flatMap((it) => it.nodes.map((node) => `${it.id}: ${node.html.slice(0, 160)} ${node.failureSummary}`));
  assert.deepEqual(found, [], what);
}

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) });
}

const cases = {
  async 'a link opens once, and nothing more once there is an administrator\'s key'() {
    const link = gateway.link();
    assert.ok(link, gateway.log);
    const page = await newPage();
    await page.goto(`${gateway.url}/dashboard#link=${link}`);
    await page.getByText('live', { exact: true }).waitFor();
    const again = await (await fresh()).newPage();
    await again.goto(`${gateway.url}/dashboard#link=${link}`);
    await again.getByRole('alert').filter({ hasText: 'has been used' }).waitFor();
    gateway.key('--admin');
    const began = Date.now();
    await page.getByRole('button', { name: 'Sign in' }).waitFor();
    assert.ok(Date.now() - began < 4000, 'the stream ends soon');
    await again.context().close();
    await page.close();
  },

  async 'a wrong key and a tenant\'s are refused, and no tenant\'s session opens the operators\' page'() {
    const page = await newPage();
    await signIn(page, 'tl_wrong');
    await page.getByRole('alert').filter({ hasText: 'not valid' }).waitFor();
    await page.getByLabel(/key/i).fill(gateway.key('acme'));
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').filter({ hasText: 'administrator' }).waitFor();
    await signIn(page, gateway.key('acme'), '/me');
    await page.getByRole('heading', { name: 'Limits', exact: true }).waitFor();
    const [cookie] = (await page.context().cookies()).filter((it) => it.name === 'trunkline-tenant');
    assert.deepEqual([cookie.path, cookie.httpOnly, cookie.sameSite], ['/me', true, 'Strict']);
    // Even where the cookie is sent by hand.
    const { value } = cookie;
    for (const [path, sent] of [
      ['/dashboard/admin/v1/servers', `trunkline-operator=${value}`],
      ['/dashboard/admin/v1/servers', `trunkline-tenant=${value}`],
      ['/admin/v1/servers', `trunkline-operator=${value}`],
    ]) {
      const answer = await fetch(gateway.url + path, { headers: { cookie: sent, 'trunkline-page': '1' } });
      assert.equal(answer.status, 401, path);
    }
    await accessible(page, '/me');
    await page.close();
  },

  async 'the trunk shows who holds which slot, in the tenant\'s colour, and who waits in order'(page) {
    const calls = [];
    for (const [tenant, n] of [['acme', 3], ['globex', 2], ['initech', 1]]) {
      for (let i = 0; i < n; i += 1) calls.push(gateway.call(tenant, 'std', 'sleep', { ms: 8000 }, { 'trunkline-labels': `run=${i}` }));
    }
    await until('six calls', async () => (await listed(page, 'std')).length === 6);
    const rows = await listed(page, 'std');
    const by = (tenant) => rows.filter((row) => row[1] === tenant).length;
    assert.deepEqual([by('acme'), by('globex'), by('initech')], [3, 2, 1]);
    const known = (await gateway.admin('/calls')).calls.map((it) => it.id).sort();
    assert.deepEqual(rows.map((row) => row[5]).sort(), known);
    // The colour of the cells is that of the legend.
    const colors = await page.evaluate(() => {
      const chip = (name) => [...document.querySelectorAll('.chip .tenant')].find((it) => it.textContent === name);
      const canvas = document.querySelector('[aria-label^="std:"] canvas');
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      const seen = new Map();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) {
        const rgb = `rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`;
        seen.set(rgb, (seen.get(rgb) ?? 0) + 1);
      }
      const near = (one, other) => one.match(/\d+/g).every((part, n) => Math.abs(part - other.match(/\d+/g)[n]) <= 2);
      return ['acme', 'globex', 'initech'].map((name) => {
        const color = getComputedStyle(chip(name).querySelector('i')).backgroundColor;
        return [...seen.keys()].some((it) => near(it, color));
      });
    });
    assert.deepEqual(colors, [true, true, true]);
    // The age is right, within what drawing and asking take.
    const age = (row) => parseFloat(row[3]) * (row[3].endsWith('ms') ? 1 : 1000);
    const [call] = (await gateway.admin('/calls')).calls;
    const shown = (await listed(page, 'std')).find((row) => row[5] === call.id);
    assert.ok(Math.abs(age(shown) - (Date.now() - Date.parse(call.since))) < 1500, `${shown} ${call.since}`);
    const canvas = page.locator('[aria-label^="std:"] canvas');
    await canvas.hover({ position: { x: 6, y: 8 } });
    await page.getByRole('tooltip').getByText('running').waitFor();
    await hangUp(calls);
  },

  async 'a hung call is seen, and cancelled'(page) {
    const hung = gateway.call('umbrella', 'std', 'sleep', { ms: 25_000 });
    await until('the hung call', async () => (await listed(page, 'std')).some((row) => row[1] === 'umbrella'));
    await page.getByRole('row').filter({ hasText: 'umbrella' }).getByRole('button').click();
    const detail = page.getByRole('complementary', { name: 'the picked call' });
    await detail.getByRole('button', { name: 'cancel' }).click();
    await detail.getByRole('button', { name: 'cancel' }).click();
    const { status, body } = await hung.answer;
    assert.deepEqual([status, body.code], [409, 'cancelled']);
    await detail.getByRole('button', { name: 'close' }).click();
    const { entries } = await gateway.admin('/audit?limit=5');
    assert.ok(entries.some((it) => it.action === 'call.cancel' && it.actor.startsWith('key:')), JSON.stringify(entries));
  },

  async 'a server is paused: its callers wait in line, and go on when it is resumed'(page) {
    await tab(page, 'Servers');
    const server = page.getByRole('region', { name: 'tickets' });
    await server.getByRole('button', { name: 'pause' }).click();
    await server.getByRole('button', { name: 'pause' }).click();
    await server.getByText('paused').waitFor();
    const calls = ['acme', 'globex'].map((tenant) => gateway.call(tenant, 'tickets', 'echo', { text: 'x' }));
    await tab(page, 'Trunk');
    await until('two who wait', async () => (await listed(page, 'tickets')).filter((row) => row[0] === 'waits').length === 2);
    await tab(page, 'Servers');
    await server.getByRole('button', { name: 'resume' }).click();
    await server.getByRole('button', { name: 'resume' }).click();
    for (const call of calls) assert.equal((await call.answer).status, 200);
    await server.getByRole('button', { name: 'replace' }).first().click();
    await server.getByRole('button', { name: 'replace' }).first().click();
    await until('a second start', async () => {
      const { servers } = await gateway.admin('/servers');
      return servers.find((it) => it.id === 'tickets').instances[0].starts === 2;
    });
  },

  async 'an operator tries a tool as a tenant'(page) {
    await tab(page, 'Servers');
    await tryTool(page, gateway);
    await accessible(page, 'a tool that was tried');
  },

  async 'a server that is killed shows its last lines, as text'(page) {
    await tab(page, 'Servers');
    gateway.killSearch();
    const server = page.getByRole('region', { name: 'search' });
    await server.getByText(/signal/).first().waitFor();
    await server.getByRole('button', { name: 'last lines' }).click();
    await server.locator('pre').filter({ hasText: 'cannot read block <b>7</b>' }).first().waitFor();
    await server.locator('pre').filter({ hasText: 'Search <i>2.1</i>' }).waitFor();
    await accessible(page, 'servers');
  },

  async 'a 429 is explained, and the time machine shows the flood when it is over'(page) {
    const flood = [];
    for (let n = 0; n < 20; n += 1) flood.push(gateway.call('hooli', 'std', 'echo', { text: 'x' }));
    const statuses = (await Promise.all(flood.map((it) => it.answer))).map((it) => it.status);
    assert.ok(statuses.includes(429), `${statuses}`);
    const at = Math.floor(Date.now() / 1000);
    await tab(page, 'Calls');
    await page.getByRole('button', { name: 'refused', exact: true }).click();
    await page.getByLabel('tenant').fill('hooli');
    await page.getByRole('cell', { name: 'rate_limited' }).first().waitFor();
    await page.getByRole('row').filter({ hasText: 'rate_limited' }).first().getByRole('button').click();
    await page.getByText('Any of these would have let it through').waitFor();
    await page.getByText(/retry in [\d.]+ m?s/).first().waitFor();
    await accessible(page, 'calls');
    await tab(page, 'Time machine');
    await until('a quiet second', async () => (await gateway.admin('/history')).seconds.at(-1).at > at + 2);
    const slider = page.getByRole('slider');
    await slider.waitFor();
    const { seconds } = await gateway.admin('/history');
    const second = seconds.find((it) => it.refused_own > 0 && it.at >= at - 2);
    await slider.fill(String(second.at));
    await page.getByRole('cell', { name: 'hooli' }).waitFor();
    await accessible(page, 'time machine');
  },

  async 'tenants, shares: use against limits, a chart, who had what'(page) {
    await tab(page, 'Tenants');
    await page.getByRole('button', { name: 'acme' }).click();
    await page.locator('.chart canvas').waitFor();
    await page.getByRole('cell', { name: 'in_flight' }).first().waitFor();
    await accessible(page, 'tenants');
    await tab(page, 'Shares');
    await page.getByRole('region', { name: 'std' }).getByRole('row').filter({ hasText: 'acme' }).waitFor();
    await accessible(page, 'shares');
  },

  async 'a page of another port reads nothing and changes nothing, although it is of the same site'(page) {
    await otherPort(page, gateway);
    await tab(page, 'Trunk');
    await page.getByRole('region', { name: /^std: ready/ }).waitFor();
  },

  async 'a revoked key ends its session and its stream within two seconds, whoever revokes it'() {
    const headers = { authorization: `Bearer ${gateway.key('--admin')}` };
    const page = await newPage(await fresh());
    for (const [whose, revoke] of [
      ['through the gateway', (id) => fetch(`${gateway.url}/admin/v1/keys/${id}`, { method: 'DELETE', headers })],
      ['by another process', (id) => gateway.run('key', 'revoke', id)],
    ]) {
      const key = await (await fetch(`${gateway.url}/admin/v1/admin-keys`, { method: 'POST', headers })).json();
      await signIn(page, key.key);
      await page.getByText('live', { exact: true }).waitFor();
      await revoke(key.id);
      const began = Date.now();
      await page.getByRole('button', { name: 'Sign in' }).waitFor();
      assert.ok(Date.now() - began < 2000, `${whose}: ${Date.now() - began} ms`);
    }
    await page.context().close();
  },

  async 'two replicas are on one page'() {
    await twoReplicas(binary, async (replica, key) => {
      const page = await newPage(await fresh(), replica);
      await signIn(page, key, '/dashboard', replica);
      return page;
    }, listed);
  },

  async 'a person connects a tenant to a server that wants OAuth'() {
    await connectTenant(binary, async ([url, ...others]) => {
      const page = await newPage(await fresh(), { url, others });
      return { page, close: () => page.context().close() };
    }, (page) => accessible(page, 'connect'));
  },

  async 'a tenant sees its own calls on its page, and no other tenant\'s'() {
    const page = await newPage(await fresh());
    await signIn(page, gateway.key('globex'), '/me');
    await page.getByRole('link', { name: 'Calls' }).click();
    const calls = [gateway.call('globex', 'std', 'sleep', { ms: 9000 }), gateway.call('acme', 'tickets', 'sleep', { ms: 9000 })];
    await until('both run', async () => (await gateway.admin('/calls')).count === 2);
    await page.getByRole('row').filter({ hasText: 'running' }).waitFor();
    assert.deepEqual(await page.getByRole('row').filter({ hasText: 'running' }).locator('td:nth-child(2)').allTextContents(), ['std']);
    await accessible(page, 'own calls');
    await hangUp(calls);
    await page.context().close();
  },

  async 'a tenant tries a tool on its own page'() {
    const page = await newPage(await fresh());
    await signIn(page, gateway.key('globex'), '/me');
    await page.getByRole('link', { name: 'Tools' }).click();
    await page.getByLabel('tool', { exact: true }).selectOption('echo');
    await page.getByLabel('text').fill('<img src=x onerror=alert(1)>');
    await page.getByRole('button', { name: 'Call' }).click();
    await page.locator('pre').filter({ hasText: '<img src=x onerror=alert(1)>' }).waitFor();
    await accessible(page, 'tools');
    await page.getByRole('link', { name: 'Connect' }).click();
    await page.getByText('"mcpServers"').waitFor();
    await page.context().close();
  },

  async 'the pages are accessible and whole, light, dark and on a phone'(page) {
    const calls = gateway.fill();
    await until('a line', async () => (await gateway.admin('/calls')).count > 20);
    await tab(page, 'Trunk');
    await page.setViewportSize({ width: 1100, height: 420 });
    await page.waitForTimeout(1500);
    await page.emulateMedia({ colorScheme: 'light' });
    await page.waitForTimeout(400);
    await accessible(page, 'light');
    await picture(page, 'live-page-light');
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.waitForTimeout(400);
    await accessible(page, 'dark');
    await picture(page, 'live-page-dark');
    await page.emulateMedia({ colorScheme: 'light' });
    await page.setViewportSize({ width: 390, height: 640 });
    await page.waitForTimeout(600);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `${overflow} px too wide on a phone`);
    await picture(page, 'live-page-phone');
    await page.setViewportSize(WIDE);
    if (pictures) {
      for (const name of ['Calls', 'Servers', 'Tenants', 'Shares', 'Time machine']) {
        await tab(page, name);
        await page.waitForTimeout(900);
        await picture(page, `tab-${name.toLowerCase().replace(' ', '-')}`);
      }
    }
    await hangUp(calls);
  },
};

async function main() {
  if (pictures) mkdirSync(pictures, { recursive: true });
  gateway = await Gateway.start(binary);
  browser = await chromium.launchPersistentContext(mkdtempSync(join(tmpdir(), 'chromium-')), {
    executablePath: '/usr/bin/chromium', headless: true, args: FLAGS, viewport: WIDE,
  });
  try {
    let page = null;
    const chosen = Object.entries(cases).filter(([name]) => name.includes(only));
    for (const [name, run] of chosen) {
      if (run.length > 0 && !page) {
        page = await newPage();
        await signIn(page, gateway.key('--admin'));
        await page.getByText('live', { exact: true }).waitFor();
      }
      const began = Date.now();
      try {
        await run(page);
      } catch (error) {
        await page?.screenshot({ path: join(tmpdir(), 'page-failure.png') }).catch(() => {});
        throw new Error(`${name}: ${error.stack}\n${faults.join('\n')}`);
      }
      assert.deepEqual(faults, [], name);
      console.log(`ok   ${name} (${Date.now() - began} ms)`);
    }
    console.log(`all ${chosen.length} cases pass`);
  } finally {
    await browser.close();
    await gateway.stop();
  }
}

// A browser of its own, with no cookies.
async function fresh() {
  return chromium.launchPersistentContext(mkdtempSync(join(tmpdir(), 'chromium-')), {
    executablePath: '/usr/bin/chromium', headless: true, args: FLAGS, viewport: WIDE,
  });
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
