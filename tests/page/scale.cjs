// Measures the live page at scale: 10,000 calls in flight of 1,000 tenants on 100 servers, renewed
// all the time, with one page open and one stream beside it.

const { mkdtempSync, writeFileSync } = require('node:fs');
const http2 = require('node:http2');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { chromium } = require('playwright-core');
const { FLAGS, Gateway, freePort, until } = require('./gateway.cjs');

const [SERVERS, TENANTS, CALLS_OF_TENANT, SECONDS] = [100, 1000, 10, 20];
const names = (what, count) => [...Array(count).keys()].map((n) => `${what}${String(n).padStart(4, '0')}`);
const [servers, tenants] = [names('server', SERVERS), names('tenant', TENANTS)];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const config = (port, binary) => `
listen = "127.0.0.1:${port}"
${servers.map((id) => `[servers.${id}]\ncommand = "${binary}"\nargs = ["std"]\nmax_in_flight = 200\n`).join('')}
${tenants.map((id) => `[tenants.${id}]\nservers = ["*"]\nmax_in_flight = 20\nrate = "1000/s"\n`).join('')}
`;

// Calls for ever, with calls that take 5 to 15 seconds. Over HTTP/2: so many connections with a
// call each are more than the gateway keeps.
async function call(client, key, at, seen) {
  for (let n = at; !seen.over; n += 37) {
    const ms = 5000 + Math.random() * 10_000;
    const path = `/v1/servers/${servers[n % SERVERS]}/tools/sleep`;
    const status = await new Promise((resolve) => {
      const stream = client.request({ ':method': 'POST', ':path': path, authorization: `Bearer ${key}` });
      let status = 0;
      stream.on('response', (headers) => { status = headers[':status']; });
      stream.on('error', () => resolve(0)).on('end', () => resolve(status)).resume();
      stream.end(JSON.stringify({ ms: Math.round(ms) }));
    });
    if (status === 200) seen.answered += 1;
    else if (!seen.over) { seen.failed.set(status, (seen.failed.get(status) ?? 0) + 1); await sleep(1000); }
  }
}

async function streamed(gateway) {
  const headers = { authorization: `Bearer ${gateway.key('--admin')}` };
  const stop = new AbortController();
  const response = await fetch(`${gateway.url}/admin/v1/live`, { headers, signal: stop.signal });
  const stream = { bytes: 0, events: 0, end: () => stop.abort() };
  (async () => {
    for await (const part of response.body) {
      stream.bytes += part.length;
      stream.events += Buffer.from(part).toString().split('\ndata: ').length - 1;
    }
  })().catch(() => {});
  return stream;
}

// Notes the time of each frame, and tasks over 50 ms.
function watchFrames() {
  window.frames_ = []; window.long_ = [];
  new PerformanceObserver((list) => window.long_.push(...list.getEntries().map((it) => it.duration))).observe({ entryTypes: ['longtask'] });
  let last = performance.now();
  requestAnimationFrame(function frame(now) { window.frames_.push(now - last); last = now; requestAnimationFrame(frame); });
}

(async () => {
  const [binary] = process.argv.slice(2);
  const port = await freePort();
  const file = join(mkdtempSync(join(tmpdir(), 'trunkline-scale-')), 'trunkline.toml');
  writeFileSync(file, config(port, binary));
  const gateway = new Gateway(binary, file, port);
  process.on('exit', () => gateway.process.kill('SIGKILL'));
  await until('all servers', () => new RegExp(`ready: ${SERVERS} of ${SERVERS} servers`).test(gateway.log), () => gateway.log.slice(-500), 120_000);
  const admin = { authorization: `Bearer ${gateway.key('--admin')}`, 'content-type': 'application/json' };
  const keys = [];
  for (const tenant of tenants) {
    const made = await fetch(`${gateway.url}/admin/v1/tenants/${tenant}/keys`, { method: 'POST', headers: admin, body: '{}' });
    keys.push((await made.json()).key);
  }
  const seen = { answered: 0, failed: new Map(), over: false };
  let client;
  for (const [n, key] of keys.entries()) {
    // As a load balancer does: a few connections carry the calls of all.
    if (n % 10 === 0) client = http2.connect(gateway.url).on('error', () => {});
    for (let i = 0; i < CALLS_OF_TENANT; i += 1) call(client, key, n * CALLS_OF_TENANT + i, seen);
    await sleep(5);
  }
  await sleep(10_000);
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
  const page = await browser.newPage({ viewport: { width: 1280, height: 860 } });
  await page.goto(`${gateway.url}/dashboard`);
  await page.getByLabel(/key/i).fill(gateway.key('--admin'));
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByText('live', { exact: true }).waitFor();
  await sleep(3000);
  const stream = await streamed(gateway);
  await sleep(2000);
  await page.evaluate(watchFrames);
  const before = { ...stream };
  await sleep(SECONDS * 1000);
  const [frames, long] = await page.evaluate(() => [window.frames_, window.long_]);
  const { seconds } = await gateway.admin('/history');
  const over = frames.filter((ms) => ms > 50);
  console.log(`the last second: ${JSON.stringify(seconds.at(-1))}`);
  console.log(`calls: ${seen.answered} answered, failed by status: ${JSON.stringify([...seen.failed])}`);
  console.log(`stream: ${((stream.bytes - before.bytes) / SECONDS / 1000).toFixed(1)} kB/s in ${((stream.events - before.events) / SECONDS).toFixed(1)} events/s`);
  console.log(`frames: ${frames.length} in ${SECONDS} s, ${over.length} over 50 ms, the longest ${Math.max(...frames).toFixed(0)} ms; ${long.length} tasks over 50 ms`);
  seen.over = true;
  stream.end();
  await browser.close();
  process.exit(0);
})();
