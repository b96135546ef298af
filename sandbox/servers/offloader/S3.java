package sandbox.offloader;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** The requests that an offloader makes of an S3 server: path style, Signature Version 4, bodies unsigned. */
final class S3 {
    private static final DateTimeFormatter STAMP =
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
    private static final Pattern UPLOAD_ID = Pattern.compile("<UploadId>([^<]+)</UploadId>");
    private static final String UNSIGNED = "UNSIGNED-PAYLOAD";
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(5)).build();
    private final URI endpoint;
    private final String region;
    private final String accessKey;
    private final String secretKey;

    S3(String endpoint, String region, String accessKey, String secretKey) {
        this.endpoint = URI.create(endpoint);
        this.region = region.isEmpty() ? "us-east-1" : region;
        this.accessKey = accessKey;
        this.secretKey = secretKey;
    }

    record Found(byte[] body, HttpHeaders headers) {
        String metadata(String name) {
            return headers.firstValue("x-amz-meta-" + name).orElse(null);
        }
    }

    /** An object, or its bytes {@code from} to before {@code until} ({@code -1}: its end). */
    Found get(String bucket, String key, long from, long until) throws IOException {
        Map<String, String> range = until < 0 ? Map.of() : Map.of("range", "bytes=" + from + "-" + (until - 1));
        HttpResponse<byte[]> answer = request("GET", bucket, key, Map.of(), range, null);
        return new Found(answer.body(), answer.headers());
    }

    void put(String bucket, String key, byte[] body, Map<String, String> metadata) throws IOException {
        Map<String, String> headers = named(metadata);
        headers.put("content-type", "application/octet-stream");
        request("PUT", bucket, key, Map.of(), headers, body);
    }

    void delete(String bucket, String key) throws IOException {
        request("DELETE", bucket, key, Map.of(), Map.of(), null);
    }

    /** Begin an upload in parts; nothing is there before it is completed. */
    Upload begin(String bucket, String key, Map<String, String> metadata) throws IOException {
        Map<String, String> headers = named(metadata);
        headers.put("content-type", "application/unknown");
        byte[] answer = request("POST", bucket, key, Map.of("uploads", ""), headers, new byte[0]).body();
        Matcher id = UPLOAD_ID.matcher(new String(answer, StandardCharsets.UTF_8));
        if (!id.find()) {
            throw new IOException("no UploadId for " + key);
        }
        return new Upload(bucket, key, id.group(1));
    }

    final class Upload {
        private final String bucket;
        private final String key;
        private final String id;
        private final List<String> parts = new ArrayList<>();

        private Upload(String bucket, String key, String id) {
            this.bucket = bucket;
            this.key = key;
            this.id = id;
        }

        void part(int number, byte[] part) throws IOException {
            Map<String, String> query = Map.of("partNumber", String.valueOf(number), "uploadId", id);
            String tag = request("PUT", bucket, key, query, Map.of(), part).headers().firstValue("etag").orElseThrow();
            parts.add("<Part><PartNumber>" + number + "</PartNumber><ETag>" + tag + "</ETag></Part>");
        }

        void complete() throws IOException {
            String all = "<CompleteMultipartUpload>" + String.join("", parts) + "</CompleteMultipartUpload>";
            byte[] body = all.getBytes(StandardCharsets.UTF_8);
            byte[] answer = request("POST", bucket, key, Map.of("uploadId", id), Map.of(), body).body();
            if (new String(answer, StandardCharsets.UTF_8).contains("<Error>")) { // with status 200
                throw new IOException("the upload of " + key + " could not be completed");
            }
        }

        void abort() throws IOException {
            request("DELETE", bucket, key, Map.of("uploadId", id), Map.of(), null);
        }
    }

    private static Map<String, String> named(Map<String, String> metadata) {
        Map<String, String> headers = new TreeMap<>();
        metadata.forEach((name, value) -> headers.put("x-amz-meta-" + name.toLowerCase(Locale.ROOT), value));
        return headers;
    }

    private HttpResponse<byte[]> request(String method, String bucket, String key, Map<String, String> query,
            Map<String, String> headers, byte[] body) throws IOException {
        String path = "/" + encoded(bucket) + "/" + encoded(key);
        String asked = new TreeMap<>(query).entrySet().stream()
                .map(one -> encoded(one.getKey()) + "=" + encoded(one.getValue())).collect(Collectors.joining("&"));
        URI uri = URI.create(endpoint.getScheme() + "://" + endpoint.getAuthority() + path
                + (asked.isEmpty() ? "" : "?" + asked));
        HttpRequest.Builder request = HttpRequest.newBuilder(uri).timeout(PATIENCE)
                .method(method, body == null ? BodyPublishers.noBody() : BodyPublishers.ofByteArray(body));
        Map<String, String> signed = new TreeMap<>(headers);
        signed.put("x-amz-date", STAMP.format(Instant.now()));
        signed.put("x-amz-content-sha256", UNSIGNED);
        signed.forEach(request::header);
        signed.put("host", endpoint.getAuthority());
        request.header("authorization", authorization(method, path, asked, signed));
        try {
            HttpResponse<byte[]> answer = http.send(request.build(), BodyHandlers.ofByteArray());
            if (answer.statusCode() == 404) {
                throw new FileNotFoundException(bucket + "/" + key);
            }
            if (answer.statusCode() / 100 != 2) {
                throw new IOException(method + " " + bucket + "/" + key + ": " + answer.statusCode());
            }
            return answer;
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException(key);
        }
    }

    private String authorization(String method, String path, String query, Map<String, String> headers) {
        String names = String.join(";", headers.keySet());
        String lines = headers.entrySet().stream().map(one -> one.getKey() + ":" + one.getValue().trim() + "\n")
                .collect(Collectors.joining());
        String canonical = String.join("\n", method, path, query, lines, names, UNSIGNED);
        String stamp = headers.get("x-amz-date");
        String day = stamp.substring(0, 8);
        String scope = day + "/" + region + "/s3/aws4_request";
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(canonical.getBytes(StandardCharsets.UTF_8));
            String toSign = String.join("\n", "AWS4-HMAC-SHA256", stamp, scope, HexFormat.of().formatHex(digest));
            byte[] secret = ("AWS4" + secretKey).getBytes(StandardCharsets.UTF_8);
            for (String part : List.of(day, region, "s3", "aws4_request", toSign)) {
                secret = hmac(secret, part);
            }
            return "AWS4-HMAC-SHA256 Credential=" + accessKey + "/" + scope + ", SignedHeaders=" + names
                    + ", Signature=" + HexFormat.of().formatHex(secret);
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(error);
        }
    }

    private static byte[] hmac(byte[] secret, String text) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }
}
