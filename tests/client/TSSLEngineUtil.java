// SPDX-License-Identifier: Apache-2.0
package org.apache.inlong.tubemq.corerpc.utils;

import java.io.FileInputStream;
import java.io.InputStream;
import java.security.KeyStore;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** For one-way TLS: unlike TubeMQ's own class it needs no trust store that is not used, whose name is null then. */
public class TSSLEngineUtil {

    public static SSLEngine createSSLEngine(String keyStore, String trustStore, String keyPassword,
            String trustPassword, boolean isClient, boolean asksForCertificate) throws Exception {
        KeyManager[] keys = null;
        TrustManager[] trusted = null;
        if (!isClient || asksForCertificate) {
            KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            factory.init(load(keyStore, keyPassword), keyPassword.toCharArray());
            keys = factory.getKeyManagers();
        }
        if (isClient || asksForCertificate) {
            TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            factory.init(load(trustStore, trustPassword));
            trusted = factory.getTrustManagers();
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys, trusted, null);
        SSLEngine engine = context.createSSLEngine();
        engine.setUseClientMode(isClient);
        engine.setNeedClientAuth(asksForCertificate);
        return engine;
    }

    private static KeyStore load(String file, String password) throws Exception {
        KeyStore store = KeyStore.getInstance("JKS");
        try (InputStream stream = new FileInputStream(file)) {
            store.load(stream, password.toCharArray());
        }
        return store;
    }
}
