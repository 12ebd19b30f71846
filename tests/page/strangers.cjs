// A page of another program on this machine: of the same site, but of another origin.

const assert = require('node:assert/strict');
const { createServer } = require('node:http');

// `page` has a session, and its browser the cookie.
exports.otherPort = async (page, gateway) => {
  const other = createServer((_, response) => response.setHeader('content-type', 'text/html').end('<p>other</p>'));
  await new Promise((resolve) => other.listen(0, '127.0.0.1', resolve));
  const evil = await page.context().newPage();
  await evil.goto(`http://127.0.0.1:${other.address().port}/`);
  const tried = await evil.evaluate(async (url) => {
    const attempts = [
      ['GET', '/dashboard/admin/v1/servers', {}], ['GET', '/dashboard/admin/v1/live', {}], ['GET', '/dashboard/session', {}],
      ['POST', '/dashboard/admin/v1/servers/std/pause', {}], ['DELETE', '/dashboard/session', {}],
      ['GET', '/dashboard/admin/v1/servers', { 'trunkline-page': '1' }], ['POST', '/dashboard/admin/v1/servers/std/pause', { 'trunkline-page': '1' }],
    ];
    const read = [];
    for (const [method, path, headers] of attempts) {
      for (const mode of ['cors', 'no-cors']) {
        try {
          const answer = await fetch(url + path, { method: mode === 'no-cors' && method === 'DELETE' ? 'POST' : method, mode, headers: mode === 'cors' ? headers : {}, credentials: 'include' });
          if (answer.type !== 'opaque' && answer.ok) read.push(`${method} ${path}`);
        } catch { /* The browser has refused it. */ }
      }
    }
    return read;
  }, gateway.url);
  assert.deepEqual(tried, []);
  await evil.close();
  other.close();
};
