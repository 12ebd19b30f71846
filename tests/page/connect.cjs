// A person connects a tenant to a server: the consent, the way to the authorization server and back.

const assert = require('node:assert/strict');
const { createServer } = require('node:http');
const { Gateway } = require('./gateway.cjs');

// An authorization server, and beside it the metadata of a server that takes its tokens.
function authorizationServer() {
  const asked = [];
  const server = createServer(async (request, response) => {
    const origin = `http://127.0.0.1:${server.address().port}`;
    const { pathname, searchParams } = new URL(request.url, origin);
    let body = '';
    for await (const chunk of request) body += chunk;
    const json = (value, status = 200) => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    };
    if (pathname === '/.well-known/oauth-protected-resource/mcp') {
      return json({ resource: `${origin}/mcp`, authorization_servers: [origin] });
    }
    if (pathname === '/.well-known/oauth-authorization-server') {
      return json({
        issuer: origin,
        authorization_endpoint: `${origin}/ask`,
        token_endpoint: `${origin}/token`,
        registration_endpoint: `${origin}/register`,
        code_challenge_methods_supported: ['S256'],
        token_endpoint_auth_methods_supported: ['none'],
        authorization_response_iss_parameter_supported: true,
      });
    }
    if (pathname === '/register') return json({ client_id: 'c' }, 201);
    if (pathname === '/ask') {
      const back = new URL(searchParams.get('redirect_uri'));
      const denied = searchParams.get('state') && asked.denies;
      back.searchParams.set('state', searchParams.get('state'));
      back.searchParams.set(denied ? 'error' : 'code', denied ? 'access_denied' : 'the-code');
      back.searchParams.set('iss', origin);
      response.writeHead(200, { 'content-type': 'text/html' });
      return response.end(`<title>sign in</title><a href="${back.href.replaceAll('&', '&amp;')}">Allow</a>`);
    }
    if (pathname === '/token') {
      asked.push(Object.fromEntries(new URLSearchParams(body)));
      return json({ access_token: 'access-alice', token_type: 'Bearer', expires_in: 3600 });
    }
    response.writeHead(401, { 'www-authenticate': 'Bearer' }).end();
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve({ server, asked })));
}

// `open` opens a page in a browser of its own, with the watch over faults; `audit` looks for barriers.
exports.connectTenant = async (binary, open, audit) => {
  const { server, asked } = await authorizationServer();
  const url = `http://127.0.0.1:${server.address().port}`;
  const gateway = await Gateway.start(binary, `
public_url = "$URL"
[secrets]
keys = ["0123456789abcdef0123456789abcdef"]
[servers.crm]
url = "${url}/mcp"
sharing = "tenant"
[servers.crm.oauth]
grant = "authorization_code"
networks = ["127.0.0.0/8"]
`);
  const { page, close } = await open([gateway.url, url]);
  try {
    const link = gateway.run('connect', 'acme', 'crm');
    assert.equal(link, `${gateway.url}/me/connect/crm?tenant=acme`);
    const signIn = async (tenant) => {
      await page.getByLabel(/key/i).fill(gateway.key(tenant));
      await page.getByRole('button', { name: 'Sign in' }).click();
    };
    // Whoever is of another tenant cannot follow the link.
    await page.goto(link);
    await signIn('globex');
    await page.getByRole('alert').filter({ hasText: 'for the tenant “acme”' }).waitFor();
    const agree = page.getByRole('button', { name: 'Agree, and sign in to crm' });
    assert.equal(await agree.count(), 0);
    await page.getByRole('button', { name: 'sign out' }).click();
    await signIn('acme');
    await agree.waitFor();
    await audit(page);
    // Opening the page has begun nothing.
    assert.equal(page.url(), link);
    asked.denies = true;
    await agree.click();
    await page.getByRole('link', { name: 'Allow' }).click();
    await page.getByRole('alert').filter({ hasText: 'access_denied' }).waitFor();
    asked.denies = false;
    await page.goto(link);
    await agree.click();
    await page.getByRole('link', { name: 'Allow' }).click();
    await page.getByRole('status').filter({ hasText: '“crm” is connected' }).waitFor();
    await audit(page);
    // Neither the code nor the state stays in the address.
    assert.equal(page.url(), `${gateway.url}/oauth/callback`);
    assert.equal(asked.length, 1);
    assert.equal(asked[0].code, 'the-code');
    // A page without an answer connects nothing.
    await page.reload();
    await page.getByRole('heading', { name: 'Not connected' }).waitFor();
    await page.goto(link);
    await page.getByText(/It is connected since/).waitFor();
    await page.getByRole('button', { name: 'Disconnect' }).click();
    await page.getByText('End the connection?').waitFor();
    await page.getByRole('button', { name: 'Disconnect' }).click();
    await page.getByText(/It is connected since/).waitFor({ state: 'detached' });
  } finally {
    await close();
    await gateway.stop();
    server.close();
  }
};
