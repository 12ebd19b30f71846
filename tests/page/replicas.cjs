// Two gateways that share a store, on one page.

const assert = require('node:assert/strict');
const { mkdtempSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { Gateway, freePort, until } = require('./gateway.cjs');

// `see` opens the page of a gateway with a key; `listed` reads a server's list of calls.
exports.twoReplicas = async (binary, see, listed) => {
  const store = join(mkdtempSync(join(tmpdir(), 'trunkline-store-')), 'trunkline.db');
  const start = async () => {
    const address = `127.0.0.1:${await freePort()}`;
    const gateway = await Gateway.start(binary, `
session_keys = ["0123456789abcdef0123456789abcdef"]
store.url = "sqlite://${store}"
replicas.listen = "${address}"
`);
    return Object.assign(gateway, { address });
  };
  const [one, other] = [await start(), await start()];
  const page = await see(one, one.key('--admin'));
  const names = [one, other].map(({ address }) => `std @ ${address}`);
  for (const name of names) await page.getByRole('region', { name: new RegExp(`^${name}: ready`) }).waitFor();
  const calls = [one, other].map((gateway) => gateway.call('acme', 'std', 'sleep', { ms: 20_000 }));
  for (const [n, gateway] of [one, other].entries()) {
    await until('a call at each', async () => (await listed(page, names[n])).length === 1);
    // It is that of this replica.
    const { calls: [known] } = await gateway.admin('/calls');
    assert.equal((await listed(page, names[n]))[0][5], known.id);
  }
  // A call is cancelled where it runs, which is not where the page is.
  const row = page.getByRole('region', { name: new RegExp(`^${names[1]}:`) }).getByRole('row').filter({ hasText: 'acme' });
  await row.getByRole('button').click();
  const detail = page.getByRole('complementary', { name: 'the picked call' });
  await detail.getByRole('button', { name: 'cancel' }).click();
  await detail.getByRole('button', { name: 'cancel' }).click();
  const { status, body } = await calls[1].answer;
  assert.deepEqual([status, body.code], [409, 'cancelled']);
  await until('the other call alone', async () => (await listed(page, names[1])).length === 0);
  assert.equal((await listed(page, names[0])).length, 1);
  // A replica that has left is gone from the page, and what remains needs no address.
  await other.stop();
  await page.getByRole('region', { name: /^std: ready/ }).waitFor();
  calls[0].cancel();
  await page.context().close();
  await one.stop();
};
