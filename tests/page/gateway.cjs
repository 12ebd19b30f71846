// A gateway to look at: its configuration, its process, and calls of its tenants.

const { spawn, spawnSync } = require('node:child_process');
const { mkdtempSync, readFileSync, readdirSync, writeFileSync } = require('node:fs');
const { createServer } = require('node:net');
const { tmpdir } = require('node:os');
const { join } = require('node:path');

const CONFIG = (port, binary, settings) => `
listen = "127.0.0.1:${port}"
${settings}
[servers.std]
command = "${binary}"
args = ["std"]
max_in_flight = 16

[servers.search]
command = "/bin/sh"
args = ["-c", "echo 'index opened: 3 shards' >&2; echo 'shard 2: cannot read block <b>7</b>' >&2; echo 'Search <i>2.1</i>'; exec ${binary} std"]
max_in_flight = 8
timeout = "60s"
env = { MARK = "search-${port}" }

[servers.tickets]
command = "${binary}"
args = ["std"]
instances = 2
max_in_flight = 6

[tenants.acme]
servers = ["*"]
weight = 2
[tenants.globex]
servers = ["*"]
[tenants.initech]
servers = ["*"]
[tenants.umbrella]
servers = ["*"]
[tenants.hooli]
servers = ["*"]
rate = "1/s"
burst = 2
`;

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

exports.freePort = freePort;

// How Chromium is started: without what would ask another host.
exports.FLAGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

exports.Gateway = class Gateway {
  static async start(binary, settings = '') {
    const directory = mkdtempSync(join(tmpdir(), 'trunkline-page-'));
    const port = await freePort();
    const config = join(directory, 'trunkline.toml');
    writeFileSync(config, CONFIG(port, binary, settings.replaceAll('$URL', `http://127.0.0.1:${port}`)));
    const gateway = new Gateway(binary, config, port);
    await gateway.ready();
    return gateway;
  }

  constructor(binary, config, port) {
    Object.assign(this, { binary, config, port, url: `http://127.0.0.1:${port}`, log: '', keys: new Map() });
    this.process = spawn(binary, ['serve', '--config', config], { stdio: ['ignore', 'pipe', 'pipe'] });
    const note = (text) => { this.log += text; };
    this.process.stdout.on('data', note);
    this.process.stderr.on('data', note);
  }

  async ready() {
    await until('the closing line of the start', () => /ready: \d of \d servers/.test(this.log), () => this.log);
  }

  // The token of the link that the start has printed.
  link() {
    return /dashboard#link=([\w-]+)/.exec(this.log)?.[1];
  }

  key(...whose) {
    const name = whose.join(' ');
    if (!this.keys.has(name)) {
      this.keys.set(name, this.run('key', 'create', ...whose));
    }
    return this.keys.get(name);
  }

  // Runs a command of the program with the gateway's configuration.
  run(...args) {
    const ran = spawnSync(this.binary, [...args, '--config', this.config], { encoding: 'utf8' });
    if (ran.status !== 0) throw new Error(ran.stderr);
    return ran.stdout.trim();
  }

  // Calls a tool as a tenant. `cancel` hangs up.
  call(tenant, server, tool, args, headers = {}) {
    const stop = new AbortController();
    const answer = fetch(`${this.url}/v1/servers/${server}/tools/${tool}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${this.key(tenant)}`, ...headers },
      body: JSON.stringify(args),
      signal: stop.signal,
    }).then(async (response) => ({ status: response.status, body: await response.json() }), () => null);
    return { answer, cancel: () => stop.abort() };
  }

  // Fills the trunk: calls of several tenants, and a line that waits.
  fill() {
    const calls = [];
    const add = (tenant, server, n, ms) => {
      for (let i = 0; i < n; i += 1) {
        const headers = { 'trunkline-timeout-ms': String(9000 + i * 1700), 'trunkline-labels': `run=${i}` };
        calls.push(this.call(tenant, server, 'sleep', { ms: ms + i * 130 }, headers));
      }
    };
    add('acme', 'std', 9, 20_000);
    add('globex', 'std', 3, 20_000);
    add('acme', 'search', 6, 20_000);
    add('initech', 'search', 5, 20_000);
    add('umbrella', 'search', 3, 20_000);
    add('umbrella', 'tickets', 4, 20_000);
    add('initech', 'tickets', 2, 20_000);
    return calls;
  }

  async admin(path) {
    const headers = { authorization: `Bearer ${this.key('--admin')}` };
    return (await fetch(`${this.url}/admin/v1${path}`, { headers })).json();
  }

  // Kills the process of the server `search`.
  killSearch() {
    for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
      try {
        const environment = readFileSync(`/proc/${pid}/environ`, 'utf8');
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        if (environment.includes(`MARK=search-${this.port}`) && command[1] === 'std') process.kill(Number(pid), 'SIGKILL');
      } catch { /* It has ended. */ }
    }
  }

  async stop() {
    const ended = new Promise((resolve) => this.process.once('exit', resolve));
    this.process.kill('SIGTERM');
    await ended;
  }
};

async function until(what, check, explain = () => '', most = 20_000) {
  for (const end = Date.now() + most; ;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited in vain for ${what}. ${explain()}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
exports.until = until;

// Has all callers go away.
exports.hangUp = async function hangUp(calls) {
  calls.forEach((it) => it.cancel());
  await Promise.all(calls.map((it) => it.answer));
};
