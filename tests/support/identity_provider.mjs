// An OpenID provider that lets in the person whom the browser's cookie "who" names. Prints its issuer.
// Arguments: the folder node_modules, and the client's redirect URI.
import { createServer } from 'node:http'

const [modules, redirect] = process.argv.slice(2)
const { default: Provider } = await import(`${modules}/oidc-provider/lib/index.js`)
const groups = { anna: ['fleet', 'staff'], eve: ['staff'] }
const server = createServer()

server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`
  const provider = new Provider(issuer, {
    clients: [{ client_id: 'console', client_secret: 'a secret of the console', redirect_uris: [redirect] }],
    claims: { openid: ['sub'], email: ['email', 'email_verified', 'groups'], profile: ['name'] },
    conformIdTokenClaims: false,
    cookies: { keys: ['a key of the test'] },
    features: { devInteractions: { enabled: false } },
    findAccount: (_, id) => ({
      accountId: id,
      claims: async () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: groups[id] ?? [] }),
    }),
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    loadExistingGrant: async (ctx) => {
      const grant = new ctx.oidc.provider.Grant({ clientId: 'console', accountId: ctx.oidc.session.accountId })
      grant.addOIDCScope('openid email profile')
      await grant.save()
      return grant
    },
  })
  provider.use(async (ctx, next) => {
    if (!ctx.path.startsWith('/interaction/')) return next()
    const result = { login: { accountId: ctx.cookies.get('who') } }
    ctx.redirect(await provider.interactionResult(ctx.req, ctx.res, result))
  })
  server.on('request', provider.callback())
  console.log(issuer)
})
