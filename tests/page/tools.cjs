// An operator tries a tool from the page of servers.

const assert = require('node:assert/strict');

// `page` shows the servers.
exports.tryTool = async (page, gateway) => {
  const server = page.getByRole('region', { name: 'tickets' });
  await server.getByRole('button', { name: 'tools', exact: true }).click();
  await server.getByRole('button', { name: 'try echo' }).click();
  const text = '<img src=x onerror=alert(1)>';
  const call = async (tenant) => {
    await server.getByLabel('call as tenant').fill(tenant);
    await server.getByLabel('text').fill(text);
    await server.getByRole('button', { name: 'Call', exact: true }).click();
  };
  await call('nobody');
  await server.getByRole('alert').filter({ hasText: 'tenant `nobody`' }).waitFor();
  await call('acme');
  await server.locator('pre').filter({ hasText: text }).waitFor();
  const { entries } = await gateway.admin('/audit?limit=5');
  const noted = entries.find((it) => it.action === 'call.as_tenant');
  assert.deepEqual([noted?.target, noted?.detail], ['tenant:acme', { server: 'tickets', tool: 'echo' }]);
};
